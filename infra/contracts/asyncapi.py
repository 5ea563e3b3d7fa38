"""The AsyncAPI 3 document of the topics, from the catalogue, the Avro schemas and the rights of the services.

It follows https://www.asyncapi.com/docs/reference/specification/v3.1.0 and version 0.5.0 of the Kafka bindings.
"""

from datetime import timedelta
from importlib.metadata import version
from typing import Any

import schemas
from schemas import topics
from schemas.access import SERVICES, Service
from schemas.topics import Topic
from services.messaging.headers import CONTENT_TYPE, OF_DEAD_LETTERS, cloud_event
from services.settings import PARTITIONS

_BINDINGS = "0.5.0"
_AVRO = "application/vnd.apache.avro+json;version=1.9.0"
_WITHOUT_CLOUD_EVENTS = (topics.POS_INVOICES, topics.STORES, topics.API_KEYS, topics.DEAD_LETTERS)
_DESCRIPTION = """
Every value is Avro in the framing of Confluent: a byte 0, four bytes of schema id (big-endian), the Avro body.
`pos-invoices` also accepts one plain JSON object for each record. The partitioner of the keys is murmur2.
A deployment can put a prefix before all names of topics (`LOYALTY_TOPIC_PREFIX`).
A topic with three partitions here has `LOYALTY_PARTITIONS` partitions in a deployment.
"""


def document() -> dict[str, Any]:
    """The AsyncAPI document, with JSON values only."""
    messages = {record: _message(record) for record in dict.fromkeys(t.value for t in topics.ALL if t.value)}
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "retail-loyalty",
            "version": version("retail-loyalty"),
            "description": _DESCRIPTION.strip(),
            "license": {"name": "MIT"},
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {
            "plain": _server("kafka", "Brokers without security, for one machine."),
            "secured": {
                **_server("kafka-secure", "Brokers with TLS; every service is a user with rights of its own."),
                "security": [{"type": "scramSha512"}],
            },
        },
        "channels": {topic.name: _channel(topic) for topic in topics.ALL},
        "operations": {name: each for service in SERVICES for name, each in _operations(service)},
        "components": {"messages": messages | {"PosInvoiceJson": _json_invoice(), "DeadLetter": _dead_letter()}},
    }


def _server(protocol: str, description: str) -> dict[str, Any]:
    return {
        "host": "{bootstrap}",
        "protocol": protocol,
        "description": description,
        "variables": {"bootstrap": {"default": "localhost:9092", "description": "LOYALTY_KAFKA_BOOTSTRAP_SERVERS"}},
    }


def _channel(topic: Topic) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "cleanup.policy": topic.cleanup_policy.split(","),
        "max.message.bytes": topic.largest_batch,
    }
    if topic.retention:
        settings["retention.ms"] = topic.retention // timedelta(milliseconds=1)
    binding = {
        "topic": topic.name,
        "partitions": topic.partitions or PARTITIONS,
        "topicConfiguration": settings,
        "bindingVersion": _BINDINGS,
    }
    return {
        "address": topic.name,
        "description": f"The key of a record is {topic.key}{', in UTF-8' if topic.value else ''}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _messages(topic)},
        "bindings": {"kafka": binding},
    }


def _messages(topic: Topic) -> tuple[str, ...]:
    if topic == topics.POS_INVOICES:
        return "PosInvoice", "PosInvoiceJson"
    return (topic.value or "DeadLetter",)


def _message(record: str) -> dict[str, Any]:
    schema = schemas.current(record)
    message: dict[str, Any] = {
        "name": record,
        "summary": schema.get("doc", record),
        "contentType": CONTENT_TYPE,
        "payload": {"schemaFormat": _AVRO, "schema": schema},
        "bindings": {
            "kafka": {
                "key": {"type": "string"},
                "schemaIdLocation": "payload",
                "schemaIdPayloadEncoding": "confluent",
                "schemaLookupStrategy": "TopicNameStrategy",
                "bindingVersion": _BINDINGS,
            }
        },
    }
    if any(topic.value == record and topic not in _WITHOUT_CLOUD_EVENTS for topic in topics.ALL):
        message["headers"] = _text_headers({**cloud_event("", record), "ce_id": None})
    return message


def _text_headers(values: dict[str, str | None]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string"} | ({"const": text} if text else {}) for name, text in values.items()},
    }


def _json_invoice() -> dict[str, Any]:
    return {
        "name": "PosInvoiceJson",
        # The schema alone does not say this: for JSON Schema, 3.0 is an integer.
        "summary": "An invoice as one JSON object. Unknown fields are ignored. Write whole numbers without a "
        "fraction: 3, not 3.0.",
        "contentType": "application/json",
        "payload": _json_schema(schemas.current("PosInvoice")),
        "bindings": {"kafka": {"key": {"type": "string"}, "bindingVersion": _BINDINGS}},
    }


def _dead_letter() -> dict[str, Any]:
    return {
        "name": "DeadLetter",
        "summary": "The unchanged value of a record of another topic. The headers tell its origin and the reason.",
        "contentType": "application/octet-stream",
        "headers": _text_headers(dict.fromkeys(OF_DEAD_LETTERS)),
        "bindings": {"kafka": {"key": {"type": "string"}, "bindingVersion": _BINDINGS}},
    }


_JSON_TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": ["string", "integer"]},
    "int": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "long": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "float": {"type": "number"},
    "double": {"type": "number"},
}


def _json_schema(type_: Any) -> dict[str, Any]:
    """The JSON Schema of the JSON that the pipeline accepts for an Avro type. A text may be a whole number."""
    match type_:
        case list():
            return {"anyOf": [_json_schema(option) for option in type_]}
        case {"type": "record", "fields": fields}:
            return {"type": "object", "properties": {field["name"]: _field(field) for field in fields}}
        case {"type": "array", "items": items}:
            return {"type": "array", "items": _json_schema(items)}
        case {"type": inner}:
            return _json_schema(inner)
        case _:
            return _JSON_TYPES.get(type_, {"type": type_})


def _field(field: dict[str, Any]) -> dict[str, Any]:
    return _json_schema(field["type"]) | ({"description": field["doc"]} if "doc" in field else {})


def _operations(service: Service) -> list[tuple[str, dict[str, Any]]]:
    pairs = [("send", topic) for topic in service.writes] + [("receive", topic) for topic in service.reads]
    return [
        (
            f"{service.user}-{action}-{topic.name}",
            {
                "action": action,
                "channel": {"$ref": f"#/channels/{topic.name}"},
                "summary": f"The service {service.user} {'writes' if action == 'send' else 'reads'} {topic.name}.",
            },
        )
        for action, topic in pairs
    ]
