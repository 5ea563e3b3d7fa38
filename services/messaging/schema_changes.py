"""What a changed schema would break, before anything is written in it."""

import json
from collections.abc import Iterator

import fastavro

import schemas
from schemas import topics
from schemas.compatibility import obstacles
from services.messaging.schema_ids import RegistrySchemaIds, SchemaIds

_NEVER_READ_INTO = {"history/PosInvoice-1.avsc"}
"""Of the Java originals: what they wrote is read, but no reader of this project has it for its own."""


def broken_by(name: str, schema_text: str, ids: SchemaIds) -> Iterator[str]:
    """What keeps a new schema of a record from living beside all that were ever given an id, a line each.

    Both ways: it must read what they have written, and their readers must read what it writes. A Schema Registry is
    asked for its opinion too. Raises SchemaRegistryUnavailableError.

    Args:
        name: of the record, e.g. ``Balance``.
        schema_text: the schema (JSON text).
    """
    try:
        draft = json.loads(schema_text)
        fastavro.parse_schema(draft)
    except Exception as error:  # noqa: BLE001  # fastavro documents no set of errors for a schema that is none
        yield f"is no Avro schema: {error}"
        return
    for schema_id, path in schemas.ids().items():
        known = json.loads(schemas.schema_text(path))
        if schemas.record_name(path) != name or known == draft:
            continue
        for line in obstacles(draft, known):
            yield f"cannot read what id {schema_id} ({path}) has written: {line}"
        for line in [] if path in _NEVER_READ_INTO else obstacles(known, draft):
            yield f"cannot be read by id {schema_id} ({path}): {line}"
    if isinstance(ids, RegistrySchemaIds):
        for topic in topics.ALL:
            if topic.value == name and not ids.accepts(topic, schema_text):
                yield f"is refused by the Schema Registry for {topic.name}"
