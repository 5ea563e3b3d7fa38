from decimal import Decimal
from typing import Any

import pytest

from infra.demo.oracle import Sent, expect
from services.codecs.state import decode_account
from services.domain.account.model import Account
from services.domain.validation import first_violation
from services.messaging.schema_ids import FolderSchemaIds
from services.pos_simulator.simulation import Kind, Options, Simulation
from tests.support.builders import CARD, HOME_DELIVERY, invoice, purchase
from tests.support.examples import examples
from tests.support.loyalty_stream import stream_of
from tests.support.oracles import is_home_delivery

FACTOR = Decimal("0.02")


def delivered(number: str = "1", **changes: Any) -> dict[str, Any]:
    """A PRIME invoice with home delivery, a cashier and two line items."""
    items = [
        {"ItemCode": "458", "ItemDescription": "Wine glass", "ItemPrice": 50.0, "ItemQty": 2, "TotalValue": 100.0},
        {"ItemCode": "283", "ItemPrice": 0.25, "ItemQty": 1, "TotalValue": 0.25},
    ]
    more = {**HOME_DELIVERY, "PosID": "POS956", "CashierID": "OAS134", "InvoiceLineItems": items}
    return {**invoice(number, amount=100.25), **more, **changes}


def sent(invoice: dict[str, Any] | None) -> Sent:
    return Sent(b"STR1", repr(invoice).encode(), invoice)


class TestOneInvoice:
    def test_points_are_rounded_half_up_to_two_places(self) -> None:
        """100.25 x 0.02 is 2.005, which rounds to 2.01."""
        assert Decimal("2.01") == expect([sent(delivered())], FACTOR).points

    def test_rows_have_no_personal_field(self) -> None:
        """Each line item is one row, and none has a card, cashier, address line or contact number."""
        rows = expect([sent(delivered())], FACTOR).hadoop
        assert rows.total() == 2
        fields = {name for found in rows for name, _ in found}
        assert not fields & {"CustomerCardNo", "CashierID", "AddressLine", "ContactNumber"}
        assert {"City", "State", "PinCode", "ItemDescription"} <= fields

    def test_a_time_in_seconds_becomes_milliseconds(self) -> None:
        """Shipment and rows have the time in milliseconds. Times of other sizes stay."""
        times = {1_770_000_000: 1_770_000_000_000, 999_999_999: 999_999_999, 10**10: 10**10}
        for time, expected in times.items():
            found = expect([sent(delivered(CreatedTime=time))], FACTOR)
            assert expected == found.shipment["1"]["CreatedTime"]
            assert {expected} == {dict(each)["CreatedTime"] for each in found.hadoop}

    def test_a_shipment_has_the_delivery_address(self) -> None:
        assert expect([sent(delivered())], FACTOR).shipment["1"]["DeliveryAddress"]["AddressLine"] == "1 High Street"

    def test_a_customer_without_points_has_no_balance(self) -> None:
        """A NONPRIME customer earns nothing."""
        expected = expect([sent(delivered(CustomerType="NONPRIME"))], FACTOR)
        assert (expected.strangers, expected.notifications) == ({CARD}, 0)


class TestSeveralInvoices:
    def test_a_duplicate_counts_once(self) -> None:
        """A second invoice with the same number is a duplicate, also with other invoices in between."""
        expected = expect([sent(delivered("1")), sent(delivered("2")), sent(delivered("1"))], FACTOR)
        assert (expected.messages, expected.repeats, expected.notifications, len(expected.shipment)) == (3, 1, 2, 2)

    def test_sales_of_a_store_are_net(self) -> None:
        """A return subtracts with any sign. An exchange adds its total. A duplicate and a dead letter add nothing."""
        lines = {sign: {"ItemCode": "1", "TotalValue": sign * 50.0} for sign in (1, -1)}
        day = [
            delivered("1", TotalAmount=100.255),
            delivered("1", TotalAmount=100.255),
            delivered("2", TotalAmount=-0.5, InvoiceLineItems=None),
            delivered("3", TotalAmount=30, OriginalInvoiceNumber="1", InvoiceLineItems=[lines[1]]),
            delivered("4", TotalAmount=-20, OriginalInvoiceNumber="1", InvoiceLineItems=[*lines.values()]),
            delivered("5", TotalAmount=7, InvoiceLineItems=[*lines.values()]),
            delivered("6", TotalAmount=None),
            delivered("7", TotalAmount=5, StoreID="STR2"),
        ]
        expected = {"STR1": (5, Decimal("56.76")), "STR2": (1, Decimal(5))}
        assert expected == expect(map(sent, day), FACTOR).sales

    def test_readings_count_the_invoices_of_each_customer(self) -> None:
        """The k-th distinct PRIME invoice of a customer has the reading k. Other invoices have none."""
        day = [
            delivered("1"),
            delivered("2", CustomerCardNo="7"),
            delivered("1"),
            delivered("3"),
            delivered("4", CustomerType=""),
        ]
        expected = expect(map(sent, day), FACTOR)
        assert expected.readings == {0: (CARD, 1), 1: ("7", 1), 3: (CARD, 2)}


BROKEN = {
    "no invoice": None,
    "no InvoiceNumber": delivered(InvoiceNumber=None),
    "blank StoreID": delivered(StoreID=" "),
    "no amount": delivered(TotalAmount=None),
    "amount not finite": delivered(TotalAmount=float("nan")),
    "tax too large": delivered(CGST=1e11),
    "item price not finite": delivered(InvoiceLineItems=[{"ItemPrice": float("inf")}]),
    "PRIME without card": delivered(CustomerCardNo=None),
    "PRIME in small letters without card": delivered(CustomerType="prime", CustomerCardNo=""),
    "PRIME with a blank before the card": delivered(CustomerCardNo=" 4711"),
    "PRIME with a control character after the card": delivered(CustomerCardNo="4711\x03"),
    "PRIME with a zero width space after the card": delivered(CustomerCardNo="4711\u200b"),
    "a blank after the delivery type": delivered(DeliveryType="HOME-DELIVERY "),
    "a zero width space before the customer type": delivered(CustomerType="\u200bPRIME"),
    "delivery without address": delivered(DeliveryAddress=None),
    "delivery without contact": delivered(DeliveryAddress={"AddressLine": "1 High Street"}),
    "amount is text": delivered(TotalAmount="100.25"),
    "address is text": delivered(DeliveryAddress="1 High Street"),
    "items are no list": delivered(InvoiceLineItems={}),
    "quantity too large": delivered(InvoiceLineItems=[{"ItemQty": 2**31}]),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_message_is_only_a_dead_letter(broken: dict[str, Any] | None) -> None:
    """The dead letter has its key and value."""
    message = sent(broken)
    expected = expect([message], FACTOR)
    assert expected.dead_letters == {(message.key, message.value): 1}
    assert not expected.hadoop
    assert not expected.shipment
    assert expected.points == 0


def test_the_oracle_agrees_with_the_domain_on_a_simulated_day() -> None:
    """The day has returns, duplicates and broken messages of every kind."""
    options = Options(
        count=examples(3_000, least=1_000), repeats=0.05, broken=0.05, customers=300, returns=0.15, exchanges=0.1
    )
    messages = list(Simulation(options, FolderSchemaIds()).messages())
    expected = expect([Sent(m.key, m.value, m.invoice) for m in messages], FACTOR)
    kinds = [message.kind for message in messages]
    invoices = [m.invoice for m in messages if m.kind is Kind.INVOICE and m.invoice]
    assert all(first_violation(one) is None for one in invoices)
    assert expected.repeats == kinds.count(Kind.REPEAT) > 0
    assert expected.dead_letters.total() == kinds.count(Kind.BROKEN) > 0
    assert expected.shipment.keys() == {one.get("InvoiceNumber") for one in invoices if is_home_delivery(one)}
    stream = stream_of([(one["CustomerCardNo"] or "", purchase(number, one)) for number, one in enumerate(invoices)])
    assert {card: Decimal(stream.total(card)).scaleb(-2) for card, entries in stream.entries.items() if entries} == {
        card: expected.points_of(card) for card in expected.earned
    }
    entries = [entry for of_card in stream.entries.values() for entry in of_card]
    accounts_left = [
        account for account in map(decode_account, stream.accounts.values()) if isinstance(account, Account)
    ]
    still_wait = sum(past.original != "" for account in accounts_left for past in account.returns.values())
    waited = sum(entry.reason == "purchase-unknown" for entry in entries) - still_wait
    assert expected.notifications == len(entries) - waited
    assert {"earned", "returned"} == {entry.kind.value for entry in entries}
    assert {"", "purchase-unknown"} == {entry.reason for entry in entries}
