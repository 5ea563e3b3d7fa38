"""The verdict on one value, and how it is reached for a topic whose values are Avro only."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import schemas
from services.domain.json_rules import LARGEST, NO_VALUE
from services.messaging import avro

NOT_FRAMED = "not in the Confluent framing: no magic byte 0 and schema id"


class Verdict(NamedTuple):
    """What the pipeline does with a value.

    Attributes:
        reason: why it becomes a dead letter; None if it is valid.
        record: in the newest schema; None if it is not readable.
        schema_id: of the schema that wrote it; None for JSON and for bytes without a known schema.
    """

    reason: str | None
    record: Any = None
    schema_id: int | None = None


Judge = Callable[[bytes | None, bytes | None], Verdict]
"""Takes the value and the key of a record."""


def judge_of_avro(name: str, known: Mapping[int, str]) -> Judge:
    """A judge of values that are Avro records of this name.

    Args:
        known: the schemas that can have written a value, by their ids.
    """
    decode = avro.record_decoder(name, known.__getitem__)
    has_ints_only = _checker(schemas.current(name)) or (lambda _: True)

    def judge(value: bytes | None, _key: bytes | None = None) -> Verdict:
        if value is None:
            return Verdict(NO_VALUE)
        if (schema_id := avro.schema_id_of(value)) is None:
            return Verdict(NOT_FRAMED)
        if schema_id not in known:
            return Verdict(f"unknown schema id {schema_id}")
        try:
            record = decode(value)
        except avro.UndecodableError as error:
            return Verdict(error.reason, schema_id=schema_id)
        if not has_ints_only(record):
            return Verdict(avro.not_of_its_schema(name), schema_id=schema_id)
        return Verdict(None, record, schema_id)

    return judge


Check = Callable[[Any], bool]


def _checker(of: Any) -> Check | None:
    """Whether all ints of a value have 32 bits; None for a type without ints.

    fastavro also reads larger numbers, but cannot write them.
    """
    match of:
        case "int":
            return lambda number: -LARGEST["int"] - 1 <= number <= LARGEST["int"]
        case ["null", inner]:
            return _unless_null(_checker(inner))
        case {"type": "record", "fields": fields}:
            checks = [(field["name"], check) for field in fields if (check := _checker(field["type"]))]
            return _of_each_field(checks) if checks else None
        case {"type": "array", "items": items}:
            return _of_each_element(_checker(items))
    return None


def _unless_null(check: Check | None) -> Check | None:
    return check and (lambda value: value is None or check(value))


def _of_each_field(checks: list[tuple[str, Check]]) -> Check:
    return lambda record: all(check(record[name]) for name, check in checks)


def _of_each_element(check: Check | None) -> Check | None:
    return check and (lambda values: all(map(check, values)))
