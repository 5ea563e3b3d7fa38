"""The verdict of the whole pipeline on a value of pos-invoices: that of its rules, and what Spark can read then."""

import json
from collections.abc import Mapping

import schemas
from services.conformance.java_avro import NotReadableByJavaError, canonical
from services.domain.validation import in_milliseconds
from services.messaging.avro import header, not_of_its_schema, record_encoder
from services.verdicts.invoices import judge_of_invoices
from services.verdicts.verdict import Judge, Verdict

_HEADER_LENGTH = len(header(0))


def judge_of_pipeline(known: Mapping[int, str]) -> Judge:
    """A judge of values of pos-invoices, as ``pipelines.columns.decoding`` decides.

    Args:
        known: the schemas that can have written a value, by their ids.
    """
    judge_invoice = judge_of_invoices(known)
    newest = schemas.current("PosInvoice")
    unchanged = {schema_id for schema_id, text in known.items() if json.loads(text) == newest}
    encode = record_encoder("PosInvoice", 0)

    def judge(value: bytes | None, key: bytes | None) -> Verdict:
        verdict = judge_invoice(value, key)
        if value is None or verdict.reason is not None or verdict.schema_id is None:
            return verdict
        readable = in_milliseconds(verdict.record)
        is_unchanged = verdict.schema_id in unchanged and readable is verdict.record
        try:
            canonical((value if is_unchanged else encode(readable))[_HEADER_LENGTH:], newest)
        except NotReadableByJavaError:
            return verdict._replace(reason=not_of_its_schema("PosInvoice"))
        return verdict

    return judge
