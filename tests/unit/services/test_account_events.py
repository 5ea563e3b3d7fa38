"""The events of accounts in values."""

import copy
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given

import schemas
from schemas import topics
from services.account_events import Found, find_in_commands, find_in_invoices
from services.codecs.events import command_record, decode_event
from services.domain.events import Adjust
from services.domain.validation import BLANKS, LONGEST_TEXT
from services.messaging.avro import encoder, header, not_of_its_schema, record_decoder
from services.verdicts import judge_with_body
from tests.support.builders import IDS, invoice
from tests.support.examples import examples
from tests.support.mutations import damaged_invoices
from tests.support.strategies import ANY_INVOICES
from tests.support.unreadable import reasons, with_large_quantity

KNOWN = IDS.known(topics.POS_INVOICES)
FIND = find_in_invoices({"PRIME"}, KNOWN)
COMMANDS = IDS.known(topics.LOYALTY_COMMANDS)
READ_PURCHASE = record_decoder("Purchase", IDS.writer_schema)
TIME = 1_700_000_000_000


def found(**changes: Any) -> Found:
    return FIND(json.dumps(invoice(**changes)).encode(), b"STR1")


def test_a_purchase_is_an_event_of_its_card() -> None:
    event = found(number="77", card="5003", CustomerType="prime")
    assert (None, "#77", "5003", "77", None) == (event.reason, event.identity, event[2], event.invoice, event.original)
    assert event.event is not None
    assert "77" == READ_PURCHASE(event.event)["InvoiceNumber"]


def test_an_invoice_of_another_customer_has_only_an_identity() -> None:
    assert Found(None, "#77") == found(number="77", CustomerType="NONPRIME")
    assert Found(None, "#77") == found(number="77", CustomerType=None)
    assert Found(None, "#77") == found(number="77", card=" \u200b", CustomerType="NONPRIME")
    assert Found(None, "#77") == found(number="77", CustomerType="NONPRIME", OriginalInvoiceNumber=" \u200b")


def test_blanks_around_the_card_of_another_customer_type_open_no_second_account() -> None:
    """Validation refuses them for PRIME only. The programme of this test also has the type STAFF."""
    find = find_in_invoices({"PRIME", "STAFF"}, KNOWN)
    for card in ("5003", " 5003\t", "5003\u200b"):
        assert "5003" == find(json.dumps(invoice(card=card, CustomerType="STAFF")).encode(), b"STR1").CustomerCardNo


@pytest.mark.parametrize(
    ("changes", "takes_back"),
    [
        ({"ItemPrice": -10.0}, True),
        ({"ItemQty": -1}, True),
        ({"TotalValue": -10.0, "ItemPrice": -10.0}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("original", ["1", " ", None])
def test_a_line_of_a_return_that_takes_back_a_discount(
    changes: dict[str, Any], original: str | None, *, takes_back: bool
) -> None:
    """Only an invoice that names an original can take back a discount."""
    line = {"ItemCode": "off", "ItemPrice": 10.0, "ItemQty": 1, "TotalValue": 10.0, **changes}
    event = found(OriginalInvoiceNumber=original, InvoiceLineItems=[line]).event

    assert event is not None
    (read,) = READ_PURCHASE(event)["InvoiceLineItems"]
    assert (takes_back and original == "1") == read["TakesBackDiscount"]


@pytest.mark.parametrize("name", ["CashierID", "OriginalInvoiceNumber"])
@pytest.mark.parametrize("number", [Decimal("42.00"), None])
def test_a_decimal_in_the_place_of_a_text_is_refused_like_in_the_fan_out(name: str, number: Decimal | None) -> None:
    """A Schema Registry accepts the schema, because Avro can read bytes as a text. A new field does not matter."""
    schema = schemas.current("PosInvoice")
    decimal = ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}]
    for field in schema["fields"]:
        if field["name"] == name:
            field["type"] = decimal
    schema["fields"].append({"name": "GiftValue", "type": decimal})
    body = io.BytesIO()
    record = invoice(CustomerType="PRIME") | {name: number, "GiftValue": Decimal("1.00")}
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    known, value = {9: json.dumps(schema)}, header(9) + body.getvalue()

    reason = find_in_invoices({"PRIME"}, known)(value, b"STR1").reason

    assert reason == judge_with_body(topics.POS_INVOICES, known)(value, b"STR1").reason
    assert reason == (None if number is None else "not an Avro PosInvoice of its schema id")


def test_a_worker_without_memory_does_not_refuse_a_purchase(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("services.account_events.record_encoder", lambda *_: fail)
    find = find_in_invoices({"PRIME"}, KNOWN)
    with pytest.raises(MemoryError):
        find(json.dumps(invoice()).encode(), b"STR1")


def test_a_return_is_an_event_without_a_card_too() -> None:
    event = found(card=None, CustomerType=None, OriginalInvoiceNumber="76")
    assert (None, None, "76") == (event.CustomerCardNo, event.invoice, event.original)
    assert event.event is not None


def test_a_long_original_number_is_of_no_invoice() -> None:
    """A number that is longer than any invoice number names no invoice, and the event stays."""
    longest, longer = (
        found(CustomerType="NONPRIME", OriginalInvoiceNumber="7" * length)
        for length in (LONGEST_TEXT, LONGEST_TEXT + 1)
    )
    assert ("7" * LONGEST_TEXT, None) == (longest.original, longer.original)
    assert None not in (longest.event, longer.event)


def test_seconds_become_milliseconds() -> None:
    event = found(CustomerType="PRIME", CreatedTime=TIME // 1000).event
    assert event is not None
    assert TIME == READ_PURCHASE(event)["CreatedTime"]


@given(ANY_INVOICES)
def test_each_valid_invoice_is_found(any_invoice: dict[str, Any]) -> None:
    """The fields of its event are those of the invoice in the newest schema."""
    value = encoder(topics.POS_INVOICES, IDS)(any_invoice)
    verdict, event = judge_with_body(topics.POS_INVOICES, KNOWN)(value, None), FIND(value, None)
    assert verdict.reason == event.reason
    if verdict.reason is not None:
        assert Found(verdict.reason) == event
        return
    assert f"#{any_invoice['InvoiceNumber']}" == event.identity
    card, original = any_invoice["CustomerCardNo"] or "", any_invoice["OriginalInvoiceNumber"] or ""
    earns = (any_invoice["CustomerType"] or "").upper() == "PRIME" and card.strip(BLANKS) != ""
    assert (earns or original.strip(BLANKS) != "") == (event.event is not None)
    assert earns == (event.invoice is not None)
    if event.event is not None:
        assert verdict.body is not None
        read = record_decoder("PosInvoice", IDS.writer_schema)(
            header(IDS.writer_id(topics.POS_INVOICES)) + verdict.body
        )
        purchase = READ_PURCHASE(event.event)
        names = [name for name in schemas.field_names("Purchase") if name != "InvoiceLineItems"]
        assert repr([read[name] for name in names]) == repr([purchase[name] for name in names])
        lines = [[line["ItemCode"], line["TotalValue"]] for line in read["InvoiceLineItems"] or []]
        assert repr(lines) == repr([[*line.values()] for line in purchase["InvoiceLineItems"]])


def test_damaged_values_have_the_reasons_of_the_fan_out() -> None:
    judge = judge_with_body(topics.POS_INVOICES, KNOWN)
    values = [*damaged_invoices(examples(3000), seed=7), *reasons(), *map(with_large_quantity, KNOWN)]
    assert [judge(value, b"STR1").reason for value in values] == [FIND(value, b"STR1").reason for value in values]


def test_a_command_is_an_event_of_its_card() -> None:
    """A command under another key has a reason instead."""
    record = command_record("5003", Adjust(append_time=0, command_id="c1", points=500, actor="a", reason="r"))
    write, find = encoder(topics.LOYALTY_COMMANDS, IDS), find_in_commands(COMMANDS)
    event = find(write(record), b"5003")
    assert (None, "!c1", "5003", None, None) == (event.reason, event.identity, event[2], event.invoice, event.original)
    assert event.event is not None
    assert "c1" == decode_event(TIME, event.event).event_id
    assert Found("the key is not the CustomerCardNo") == find(write(record), b"5004")


def test_a_value_that_the_current_schema_cannot_hold_has_a_reason() -> None:
    """The registry ignores the scale of a decimal. Without a reason the loyalty query would stop."""
    schema = copy.deepcopy(schemas.current("LoyaltyCommand"))
    points = next(field for field in schema["fields"] if field["name"] == "Points")
    points["type"][1]["scale"] = 4
    command = {"CommandID": "c", "Kind": "adjust", "CustomerCardNo": "k", "Points": Decimal("10.1234")}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, command)

    found = find_in_commands({77: json.dumps(schema)})(header(77) + body.getvalue(), b"k")

    assert Found(not_of_its_schema("LoyaltyCommand")) == found
