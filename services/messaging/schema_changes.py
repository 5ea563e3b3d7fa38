"""Finds what a changed schema would break, before a producer uses it."""

import json
from collections.abc import Iterator

import fastavro

import schemas
from schemas import topics
from schemas.compatibility import obstacles
from services.messaging.schema_ids import SchemaIds

_ONLY_READ = {"history/PosInvoice-1.avsc"}
"""Schemas of the Java originals. This project reads records of these schemas, but never writes them."""


def broken_by(name: str, schema_text: str, ids: SchemaIds) -> Iterator[str]:
    """The conflicts between a new schema of a record and all its schemas that have an id, one line each.

    A reader with the new schema must be able to read records of the other schemas, and the reverse. If the settings
    name a Schema Registry, it must accept the new schema too. Raises SchemaRegistryUnavailableError.
    """
    try:
        draft = json.loads(schema_text)
        fastavro.parse_schema(draft)
    except Exception as error:  # noqa: BLE001  # fastavro does not document its errors for invalid schemas
        yield f"is not an Avro schema: {error}"
        return
    for schema_id, path in schemas.ids().items():
        known = json.loads(schemas.schema_text(path))
        if schemas.record_name(path) != name or known == draft:
            continue
        for line in obstacles(draft, known):
            yield f"cannot read what id {schema_id} ({path}) has written: {line}"
        if path not in _ONLY_READ:
            for line in obstacles(known, draft):
                yield f"cannot be read by id {schema_id} ({path}): {line}"
    for topic in topics.ALL:
        if topic.value == name and not ids.accepts(topic, schema_text):
            yield f"is refused by the Schema Registry for {topic.name}"
