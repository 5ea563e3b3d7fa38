"""The verdict on a value of any topic."""

import json

import pytest

from schemas import topics
from services.messaging.avro import header, record_decoder, record_encoder
from services.verdicts import LARGEST_TEXT_BYTES, judge_of, judge_of_plain, judge_with_body
from tests.support.builders import IDS
from tests.support.examples import examples
from tests.support.mutations import damaged_invoices
from tests.support.unreadable import INVOICE, reasons, with_large_quantity

KNOWN = IDS.known(topics.POS_INVOICES)
JUDGE = judge_with_body(topics.POS_INVOICES, KNOWN)
READ = record_decoder("PosInvoice", IDS.writer_schema)


def test_each_value_has_a_body_or_a_reason() -> None:
    """An error would stop the query at every restart."""
    for value in [*damaged_invoices(examples(4000), seed=2), *reasons()]:
        verdict = JUDGE(value, b"STR1")
        assert (verdict.body is None) == (verdict.reason is not None)


def test_the_body_is_the_record_in_the_newest_schema() -> None:
    valid = [verdict for value in damaged_invoices(examples(1000), seed=3) if (verdict := JUDGE(value, b"STR1")).body]
    newest = header(IDS.writer_id(topics.POS_INVOICES))
    for verdict in valid:
        found = READ(newest + verdict.body)
        assert repr({name: verdict.record[name] for name in found} | {"CreatedTime": found["CreatedTime"]}) == repr(
            found
        )
    assert {None, *KNOWN} == {verdict.schema_id for verdict in valid}


def test_a_value_that_the_caller_has_decoded_gets_the_same_body() -> None:
    """Its bytes are the body, except if the till sends a time in seconds. Then the body has milliseconds."""
    for time in (1_700_000_000, 1_700_000_000_000):
        record = JUDGE(json.dumps({**INVOICE, "CreatedTime": time}).encode(), None).record
        value = record_encoder("PosInvoice", IDS.writer_id(topics.POS_INVOICES))(record)
        body = JUDGE(value, None, READ(value)).body
        assert body
        assert 1_700_000_000_000 == READ(value[:5] + body)["CreatedTime"]


@pytest.mark.parametrize("schema_id", sorted(KNOWN))
def test_an_int_of_more_than_32_bits_is_refused(schema_id: int) -> None:
    """The library fastavro can read it, and cannot write it."""
    assert "not an Avro PosInvoice of its schema id" == JUDGE(with_large_quantity(schema_id), b"STR1").reason


def test_plain_records_have_no_other_rules() -> None:
    known = IDS.known(topics.LOYALTY_COMMANDS)
    judge = judge_of_plain("PosInvoice", KNOWN)
    value = record_encoder("PosInvoice", IDS.writer_id(topics.POS_INVOICES))({**INVOICE, "InvoiceNumber": ""})
    assert judge(value, None).reason is None
    assert "InvoiceNumber is blank" == JUDGE(value, None).reason
    assert "no value" == judge_of(topics.LOYALTY_COMMANDS, known)(None, None).reason


def test_a_line_without_its_first_field_is_refused() -> None:
    """Spark takes its body for one that it cannot read."""
    judge = judge_with_body(topics.HADOOP, IDS.known(topics.HADOOP))
    write = record_encoder("HadoopRecord", IDS.writer_id(topics.HADOOP))
    assert "InvoiceNumber is missing" == judge(write({"ItemCode": "1"}), None).reason
    assert judge(write({"InvoiceNumber": "1"}), None).reason is None


@pytest.mark.parametrize(
    "invisible", ["\0", "\x03", "\u2060", "\u180e", "\u00ad", "\u200b", "\u00a0", "\ufeff", "\U000e0001"]
)
def test_an_invisible_character_at_the_end_of_a_card_is_a_blank(invisible: str) -> None:
    """Otherwise the card with this character would be another customer."""
    value = json.dumps({**INVOICE, "CustomerType": "PRIME", "CustomerCardNo": f"5003{invisible}"}).encode()
    assert "CustomerCardNo has blanks at its start or end though CustomerType is PRIME" == JUDGE(value, None).reason


def test_a_mistake_in_the_rules_does_not_stop_other_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in Spark's worker would stop the query at every restart."""

    def fail(_: object) -> None:
        raise TypeError("'bool' object is not iterable")

    monkeypatch.setattr("services.verdicts.validation.first_violation", fail)
    assert "a fault of the pipeline: report it, and replay the record after it is fixed (TypeError)" == (
        judge_of(topics.POS_INVOICES, KNOWN)(json.dumps(INVOICE).encode(), None).reason
    )


@pytest.mark.parametrize(
    "place", ["validation.first_violation", "avro.body_encoder", "avro.fastavro.schemaless_reader"]
)
def test_a_worker_without_memory_makes_no_decision(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The record is valid, and another worker can have memory."""

    def fail(*_: object) -> None:
        raise MemoryError

    value = json.dumps(INVOICE).encode()
    if place == "avro.fastavro.schemaless_reader":
        value = next(map(with_large_quantity, KNOWN))
    monkeypatch.setattr(f"services.verdicts.{place}", (lambda _: fail) if place == "avro.body_encoder" else fail)
    with pytest.raises(MemoryError):
        judge_with_body(topics.POS_INVOICES, KNOWN)(value, None)


def test_a_text_that_spark_refuses_has_a_reason() -> None:
    """Queries that read values in Python and in Java must decide alike."""
    longest = {**INVOICE, "DeliveryAddress": {"AddressLine": "a" * LARGEST_TEXT_BYTES}}
    longer = {**INVOICE, "DeliveryAddress": {"AddressLine": "a" * (LARGEST_TEXT_BYTES + 1)}}
    longer_in_bytes = {**INVOICE, "InvoiceLineItems": [{"ItemCode": "é" * (LARGEST_TEXT_BYTES // 2 + 1)}]}
    judge = judge_of(topics.POS_INVOICES, KNOWN)
    assert judge(json.dumps(longest).encode(), None).reason is None
    for each in longer, longer_in_bytes:
        value = json.dumps(each, ensure_ascii=False).encode()
        assert "not an Avro PosInvoice of its schema id" == judge(value, None).reason


def test_a_judge_without_bodies_makes_the_same_decisions() -> None:
    """The loyalty query reads no bodies. It must not count an invoice that the fan-out refuses."""
    without = judge_of(topics.POS_INVOICES, KNOWN)
    values = [*damaged_invoices(examples(4000), seed=5), *reasons(), *map(with_large_quantity, KNOWN)]
    verdicts = [(without(value, b"STR1"), JUDGE(value, b"STR1")) for value in values]
    assert all(left.reason == right.reason for left, right in verdicts)
    assert any(left.reason is None for left, _ in verdicts)
    assert all(left.body is None for left, _ in verdicts)
