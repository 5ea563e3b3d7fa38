"""The verdict on a value of pos-invoices."""

import json
from typing import Any

import pytest
from hypothesis import given

import schemas
from schemas import topics
from services.domain.json_rules import unknown_fields
from services.domain.validation import (
    FEW,
    INVOICE_TOO_LARGE,
    LARGEST_INVOICE,
    MOST_LINE_ITEMS,
    Rule,
    first_violation,
)
from services.messaging.avro import decoder, encoder, header
from services.verdicts import Verdict, judge_with_body
from tests.support.builders import IDS, invoice
from tests.support.strategies import ANY_INVOICES
from tests.support.unreadable import reasons, reasons_of_misfits

JUDGE = judge_with_body(topics.POS_INVOICES, IDS.known(topics.POS_INVOICES))


def verdict(value: bytes | None) -> Verdict:
    return JUDGE(value, None)


@pytest.mark.parametrize("expected", [reasons(), reasons_of_misfits()], ids=["unreadable", "misfits"])
def test_each_rule_refuses_an_invoice_with_its_reason(expected: dict[bytes | None, str | None]) -> None:
    assert expected == {value: verdict(value).reason for value in expected}


@given(ANY_INVOICES)
def test_an_invoice_is_the_same_in_both_formats(any_invoice: dict[str, Any]) -> None:
    """An amount that JSON does not have is the only difference."""
    avro = verdict(encoder(topics.POS_INVOICES, IDS)(any_invoice))
    assert (first_violation(any_invoice), 9) == (avro.reason, avro.schema_id)
    text = json.dumps(any_invoice).encode()
    if b"NaN" not in text and b"Infinity" not in text:
        assert (avro.reason, avro.record, None, avro.body) == verdict(text)


def test_a_whole_number_becomes_a_text() -> None:
    found = verdict(json.dumps({**invoice(), "InvoiceNumber": 12345678901234567890}).encode()).record or {}
    assert "12345678901234567890" == found["InvoiceNumber"]
    assert decoder(topics.POS_INVOICES, IDS)(encoder(topics.POS_INVOICES, IDS)(found)) == found


@pytest.mark.parametrize("start", [b"{", b"[", b"\xff\xfe{", header(9), header(2**31 - 1)])
def test_a_value_that_is_too_large_is_not_read(start: bytes) -> None:
    """It may contain millions of empty line items, which compress to a few kilobytes and need gigabytes of memory."""
    value = start.ljust(LARGEST_INVOICE, b" ")
    assert INVOICE_TOO_LARGE != verdict(value).reason
    assert INVOICE_TOO_LARGE == verdict(value + b" ").reason


def test_an_invoice_with_the_largest_number_of_line_items_fits() -> None:
    line = {"ItemCode": "458", "ItemDescription": "d" * 300, "ItemPrice": 50.25, "ItemQty": 2, "TotalValue": 100.5}
    largest = {**invoice(), "InvoiceLineItems": [line] * MOST_LINE_ITEMS}
    assert verdict(json.dumps(largest).encode()).reason is None


def test_too_many_line_items_are_not_looked_at() -> None:
    lines = [{"ItemQty": "two"}] * (MOST_LINE_ITEMS + 1)
    few = Rule("InvoiceLineItems", FEW)
    assert few.reason == verdict(json.dumps({**invoice(), "InvoiceLineItems": lines}).encode()).reason


def test_unknown_fields_are_found_at_every_depth() -> None:
    value = {"Tip": 1, "DeliveryAddress": {"Town": 1}, "InvoiceLineItems": [{"Colour": 1}, {"Colour": 2}], "CESS": None}
    assert ["Tip", "DeliveryAddress.Town", "InvoiceLineItems[].Colour"] == unknown_fields(
        json.dumps(value).encode(), schemas.current("PosInvoice")
    )
