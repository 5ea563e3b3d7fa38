"""What the pipeline decides about a value before Spark reads it. tests/spark/test_conformance.py has Spark."""

from pipelines.columns.decoding import _decide
from schemas import topics
from services.conformance.verdict import judge_of_pipeline
from services.verdicts.invoices import judge_of_invoices
from tests.support.builders import IDS
from tests.support.mutations import damaged_invoices
from tests.support.unreadable import reasons

KNOWN = IDS.known(topics.POS_INVOICES)
decide = _decide(judge_of_invoices, "PosInvoice", tuple(KNOWN.items()))


def test_no_value_stops_the_pipeline():
    """Each value has a body or a reason, and none raises an error, which would stop the query at every restart."""
    for value in [*damaged_invoices(4000, seed=2), *reasons()]:
        body, reason = decide(value, b"STR1")
        assert (body is None) == (reason is not None)


def test_conformance_refuses_what_is_refused_here():
    """The command only adds what Java cannot read."""
    check = judge_of_pipeline(KNOWN)
    for value in [*damaged_invoices(1000, seed=3), *reasons()]:
        reason = decide(value, b"STR1")[1]
        assert check(value, b"STR1").reason in (
            [reason] if reason else [None, "not an Avro PosInvoice of its schema id"]
        )
