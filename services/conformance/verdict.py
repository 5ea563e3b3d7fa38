"""The pipeline's verdict on one value of pos-invoices, without Spark.

``pipelines.sources.invoices`` does the same in columns. Tests demand the same reasons of both
(tests/support/unreadable.py).
"""

import json
import re
from collections.abc import Callable
from typing import NamedTuple

import schemas
from schemas import topics
from services.conformance.java_avro import NotReadableByJavaError, canonical
from services.domain import json_rules
from services.domain.invoice import PosInvoice
from services.domain.json_rules import NotReadableError
from services.domain.validation import SECONDS, first_violation
from services.messaging import avro
from services.messaging.schema_ids import SchemaIds

_SCHEMA = schemas.current("PosInvoice")
_BEGINS_AS_OBJECT = re.compile(json_rules.BEGINS_AS_OBJECT.encode())


class Verdict(NamedTuple):
    """What the pipeline does with a value.

    Attributes:
        reason: why it becomes a dead letter; None if it is a valid invoice.
        invoice: as the till sent it; None if it is not readable.
        schema_id: of the schema that wrote it; None for JSON.
    """

    reason: str | None
    invoice: PosInvoice | None = None
    schema_id: int | None = None

    @property
    def is_json(self) -> bool:
        return self.schema_id is None


def judge(ids: SchemaIds) -> Callable[[bytes | None], Verdict]:
    """A function that gives the verdict on a value.

    Raises SchemaRegistryUnavailableError if the schemas cannot be read.
    """
    known = ids.known(topics.POS_INVOICES)
    decode = avro.record_decoder("PosInvoice", known.__getitem__)
    writers = {schema_id: json.loads(text) for schema_id, text in known.items()}

    def verdict(value: bytes | None) -> Verdict:
        schema_id = None
        try:
            if value is None:
                raise NotReadableError(json_rules.NO_VALUE)  # noqa: TRY301 - one place makes all verdicts
            if _BEGINS_AS_OBJECT.match(value):
                invoice = json_rules.read_object(value, _SCHEMA)
            else:
                schema_id = _schema_id(value)
                if schema_id not in known:
                    raise NotReadableError(f"unknown schema id {schema_id}")  # noqa: TRY301
                start = len(avro.header(schema_id))
                invoice = decode(value[:start] + canonical(value[start:], writers[schema_id]))
        except NotReadableError as error:
            return Verdict(str(error), schema_id=schema_id)
        except avro.UndecodableError as error:
            return Verdict(error.reason, schema_id=schema_id)
        except NotReadableByJavaError:
            return Verdict(avro.not_of_its_schema("PosInvoice"), schema_id=schema_id)
        found: PosInvoice = invoice  # type: ignore[assignment]  # the schema has the fields of the class
        return Verdict(first_violation(found), found, schema_id)

    return verdict


def is_in_seconds(created_time: int | None) -> bool:
    """Whether the pipeline takes a CreatedTime for seconds."""
    return created_time is not None and SECONDS[0] <= created_time <= SECONDS[1]


def _schema_id(value: bytes) -> int:
    """The schema id of a framed value. Raises NotReadableError for other bytes."""
    if (schema_id := avro.schema_id_of(value)) is not None:
        return schema_id
    if not value:
        raise NotReadableError(json_rules.EMPTY)
    if value.startswith(json_rules.BYTE_ORDER_MARK):
        raise NotReadableError(json_rules.HAS_BYTE_ORDER_MARK)
    if value.startswith(json_rules.UTF_16_MARKS):
        raise NotReadableError(json_rules.IS_UTF_16)
    if kind := json_rules.kind_of_other(value):
        raise NotReadableError(f"{kind} in JSON, and must be one JSON object")
    raise NotReadableError(json_rules.NO_INVOICE)
