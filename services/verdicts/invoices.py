"""The verdict on a value of pos-invoices, which is Avro or JSON."""

import re
from collections.abc import Mapping

import schemas
from services.domain import json_rules
from services.domain.json_rules import NotReadableError
from services.domain.validation import first_violation
from services.verdicts.verdict import NOT_FRAMED, Judge, Verdict, judge_of_avro

_SCHEMA = schemas.current("PosInvoice")
_BEGINS_AS_OBJECT = re.compile(json_rules.BEGINS_AS_OBJECT.encode())


def judge_of_invoices(known: Mapping[int, str]) -> Judge:
    """A judge of values of pos-invoices. Its records are of the type PosInvoice, as the till sent them.

    Args:
        known: the schemas that can have written a value, by their ids.
    """
    judge_avro = judge_of_avro("PosInvoice", known)

    def judge(value: bytes | None, key: bytes | None = None) -> Verdict:
        if value is not None and _BEGINS_AS_OBJECT.match(value):
            try:
                verdict = Verdict(None, json_rules.read_object(value, _SCHEMA))
            except NotReadableError as error:
                verdict = Verdict(str(error))
        else:
            verdict = judge_avro(value, key)
        if verdict.record is not None:
            return verdict._replace(reason=first_violation(verdict.record))
        if value is None or verdict.schema_id is not None:
            return verdict
        # UTF-16 and UTF-32 can also begin as a JSON object in UTF-8, and as Avro of an unknown schema.
        if encoding := json_rules.other_encoding(value):
            return Verdict(encoding)
        return Verdict(_other_bytes(value)) if verdict.reason == NOT_FRAMED else verdict

    return judge


def _other_bytes(value: bytes) -> str:
    """Why a value is neither a JSON object nor framed Avro."""
    if not value:
        return json_rules.EMPTY
    if value.startswith(json_rules.BYTE_ORDER_MARK):
        return json_rules.HAS_BYTE_ORDER_MARK
    kind = json_rules.kind_of_other(value)
    return f"{kind} in JSON, and must be one JSON object" if kind else json_rules.NO_INVOICE
