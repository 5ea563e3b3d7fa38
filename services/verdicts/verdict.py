"""The verdict on one value, and the judge for topics whose values are always Avro."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from services.domain.json_rules import NO_VALUE
from services.messaging import avro

NOT_FRAMED = "not in the Confluent framing: no magic byte 0 and schema id"


class Verdict(NamedTuple):
    """The decision of the pipeline about a value.

    Attributes:
        reason: why it becomes a dead letter; None if it is valid.
        record: the value in the newest schema, otherwise as it was sent; None if it is not readable.
        schema_id: the id of the schema that wrote it; None for JSON and for bytes without a known schema.
        body: the Avro body of the valid record in the newest schema; None before the last step.
    """

    reason: str | None
    record: Any = None
    schema_id: int | None = None
    body: bytes | None = None


Judge = Callable[[bytes | None, bytes | None], Verdict]
"""Takes the value and the key of a record."""


def judge_of_avro(name: str, known: Mapping[int, str]) -> Judge:
    """A judge of values that are Avro records of this name.

    Args:
        known: the schemas that can have written a value, by their ids.
    """
    decode = avro.record_decoder(name, known.__getitem__)

    def judge(value: bytes | None, _key: bytes | None = None) -> Verdict:
        if value is None:
            return Verdict(NO_VALUE)
        if (schema_id := avro.schema_id_of(value)) is None:
            return Verdict(NOT_FRAMED)
        if schema_id not in known:
            return Verdict(f"unknown schema id {schema_id}")
        try:
            return Verdict(None, decode(value), schema_id)
        except avro.UndecodableError as error:
            return Verdict(error.reason, schema_id=schema_id)

    return judge
