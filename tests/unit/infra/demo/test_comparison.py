"""The comparison of the demo accepts right outputs and finds each kind of error."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from infra.demo.comparison import Balance, DeadLetter, LedgerEntry, Nature, Outputs, mismatches
from infra.demo.oracle import Expected, Sent, expect
from services.codecs.records import notification_record
from services.domain.invoice import PosInvoice
from services.messaging.schema_ids import FolderSchemaIds
from services.pos_simulator.simulation import Kind, Options, Simulation
from tests.support.builders import purchase
from tests.support.loyalty_stream import stream_of

DAY = Options(count=400, repeats=0.05, broken=0.05, customers=60, returns=0.1, exchanges=0.05)


def invoices() -> Iterator[PosInvoice]:
    """The valid invoices of the day."""
    for message in Simulation(DAY, FolderSchemaIds()).messages():
        if message.kind is Kind.INVOICE and message.invoice:
            yield message.invoice


@pytest.fixture(scope="module")
def expected() -> Expected:
    messages = Simulation(DAY, FolderSchemaIds()).messages()
    return expect([Sent(m.key, m.value, m.invoice) for m in messages], Decimal("0.02"))


def sales_by_minute(expected: Expected) -> Iterator[dict[str, Any]]:
    """Two records of the first minute of each store, the last one first, and one of the second minute."""
    for store, (invoices, amount) in expected.sales.items():
        common = {"StoreID": store, "WindowStart": 0}
        yield {**common, "Count": invoices - 1, "Sum": amount - 1, "Sequence": invoices - 1}
        yield {**common, "Count": 1, "Sum": Decimal(17), "Sequence": 1}
        yield {**common, "WindowStart": 60_000, "Count": 1, "Sum": Decimal(1), "Sequence": 1}


def in_ledger(found: Outputs) -> list[LedgerEntry]:
    fields = ("CustomerCardNo", "Sequence", "Kind", "EarnedLoyaltyPoints", "TotalLoyaltyPoints")
    return [LedgerEntry(*(each[name] for name in fields)) for each in found.notifications]


@pytest.fixture
def right(expected: Expected) -> Outputs:
    """Outputs that agree with the expectation."""
    notifications: list[dict[str, Any]] = []
    balances: dict[str, Balance | None] = {}
    for card, earned in expected.earned.items():
        # Every return waits. The first one with a known original takes everything back, the others take nothing.
        entries = [("earned", number, points, "") for number, points in earned.items()]
        rest = -expected.taken[card]
        for number, original in expected.returned[card].items():
            entries.append(("returned", number, Decimal(0), "purchase-unknown"))
            if original in earned:
                entries.append(("returned", number, rest, ""))
                rest = Decimal(0)
        total = Decimal(0)
        for sequence, (kind, number, points, reason) in enumerate(entries, start=1):
            total += points
            notifications.append(
                {
                    "CustomerCardNo": card,
                    "Kind": kind,
                    "Reason": reason,
                    "InvoiceNumber": number,
                    "EarnedLoyaltyPoints": points,
                    "TotalLoyaltyPoints": total,
                    "Sequence": sequence,
                }
            )
        balances[card] = Balance(total, len(entries))
    rows = [dict(row) for row in expected.hadoop.elements()]
    return Outputs(
        shipment=list(expected.shipment.values()),
        hadoop=rows,
        notifications=notifications,
        dead_letters=[DeadLetter(key, value, "why") for key, value in expected.dead_letters.elements()],
        repeats=expected.repeats,
        parquet=rows,
        sales=list(sales_by_minute(expected)),
        balances=balances,
        unknown=dict.fromkeys(expected.strangers, 404),
    )


def test_right_outputs_have_no_mismatch(expected: Expected, right: Outputs) -> None:
    """This holds in any order."""
    assert mismatches(expected, right) == []
    ledger = in_ledger(right)
    assert mismatches(expected, replace(right, ledger=ledger)) == []
    assert mismatches(expected, replace(right, sales=None)) == [], "tests.faults compares neither sales nor ledger"
    turned = replace(
        right,
        ledger=ledger[::-1],
        sales=list(right.sales or ())[::-1],
        shipment=right.shipment[::-1],
        hadoop=right.hadoop[::-1],
        notifications=right.notifications[::-1],
        dead_letters=right.dead_letters[::-1],
        parquet=right.parquet[::-1],
    )
    assert mismatches(expected, turned) == []


@pytest.mark.parametrize("seed", range(5))
def test_accounts_of_the_domain_agree_in_any_order(seed: int, expected: Expected, right: Outputs) -> None:
    """The invoices of the day in a drawn order and in batches give the points and the returns that are expected."""
    dice = random.Random(seed)
    given = [(one["CustomerCardNo"] or "", purchase(number, one)) for number, one in enumerate(invoices())]
    order = dice.sample(given, len(given))
    stream = stream_of(*(order[start : start + 50] for start in range(0, len(order), 50)))
    notifications: list[dict[str, Any]] = [
        notification_record(card, entry) for card, entries in stream.entries.items() for entry in entries
    ]
    last = {each["CustomerCardNo"]: each for each in notifications}
    balances = {card: Balance(each["TotalLoyaltyPoints"], each["Sequence"]) for card, each in last.items()}

    assert mismatches(expected, replace(right, notifications=notifications, balances=balances)) == []
    assert "purchase-unknown" in {each["Reason"] for each in notifications}


LISTS = ("shipment", "hadoop", "notifications", "dead_letters", "parquet", "sales")


@pytest.mark.parametrize("output", LISTS)
def test_a_lost_record_is_a_mismatch(output: str, expected: Expected, right: Outputs) -> None:
    """It is missing in one of the outputs."""
    assert mismatches(expected, replace(right, **{output: getattr(right, output)[1:]}))


@pytest.mark.parametrize("output", [name for name in LISTS if name != "sales"])
def test_a_doubled_record_is_a_mismatch(output: str, expected: Expected, right: Outputs) -> None:
    """It is written twice, with two ids."""
    records = getattr(right, output)
    assert mismatches(expected, replace(right, **{output: [*records, records[0]]}))


def first(records: Any, **changes: Any) -> list[dict[str, Any]]:
    return [{**records[0], **changes}, *records[1:]]


def balance(found: Outputs, doctored: Callable[[Balance], Balance | None]) -> Outputs:
    card, right_one = next((card, one) for card, one in found.balances.items() if one)
    return replace(found, balances={**found.balances, card: doctored(right_one)})


def delivered(found: Outputs, **changes: Any) -> Outputs:
    address = {**found.shipment[0]["DeliveryAddress"], **changes}
    return replace(found, shipment=first(found.shipment, DeliveryAddress=address))


DOCTORED: dict[str, Callable[[Outputs], Outputs]] = {
    "a wrong running total": lambda o: replace(o, notifications=first(o.notifications, TotalLoyaltyPoints=Decimal(1))),
    "wrong points": lambda o: replace(o, notifications=first(o.notifications, EarnedLoyaltyPoints=Decimal(1))),
    "a return that took other points": lambda o: replace(
        o, notifications=[*o.notifications[:-1], {**o.notifications[-1], "EarnedLoyaltyPoints": Decimal(1)}]
    ),
    "a return that is counted as a sale": lambda o: replace(
        o, notifications=[{**n, "Kind": "earned"} for n in o.notifications]
    ),
    "a gap in the sequence": lambda o: replace(o, notifications=first(o.notifications, Sequence=99)),
    "another customer": lambda o: replace(o, notifications=first(o.notifications, CustomerCardNo="other")),
    "a balance off by a hundredth": lambda o: balance(o, lambda b: b._replace(points=b.points + Decimal("0.01"))),
    "a balance of another sequence": lambda o: balance(o, lambda b: b._replace(sequence=b.sequence + 1)),
    "no balance": lambda o: balance(o, lambda _: None),
    "a card number in a row": lambda o: replace(o, hadoop=first(o.hadoop, PinCode="4629185211")),
    "a column of card numbers": lambda o: replace(o, parquet=[{**r, "CustomerCardNo": None} for r in o.parquet]),
    "a wrong price in a file": lambda o: replace(o, parquet=first(o.parquet, ItemPrice=0.01)),
    "a masked shipment": lambda o: delivered(o, ContactNumber=None),
    "a dead letter that was changed": lambda o: replace(
        o, dead_letters=[o.dead_letters[0]._replace(value=b"?"), *o.dead_letters[1:]]
    ),
    "a dead letter without a reason": lambda o: replace(
        o, dead_letters=[o.dead_letters[0]._replace(reason=""), *o.dead_letters[1:]]
    ),
    "a sale that counted twice": lambda o: replace(o, sales=first(o.sales, Count=99, Sequence=99)),
    "an amount off by a hundredth": lambda o: replace(
        o, sales=[{**s, "Sum": s["Sum"] + Decimal("0.01")} for s in o.sales or ()]
    ),
    "the sales of another store": lambda o: replace(o, sales=first(o.sales, StoreID="other")),
    "a repeat that was not dropped": lambda o: replace(o, repeats=o.repeats - 1),
    "a balance for a stranger": lambda o: replace(o, unknown={**o.unknown, "nobody": 200}),
    "a record that changed on replay": lambda o: replace(o, changed=["loyalty 1"]),
}


@pytest.mark.parametrize("doctor", DOCTORED.values(), ids=DOCTORED.keys())
def test_a_wrong_record_is_a_mismatch(doctor: Callable[[Outputs], Outputs], expected: Expected, right: Outputs) -> None:
    """Any error in one record is a mismatch."""
    assert mismatches(expected, doctor(right))


@pytest.mark.parametrize(
    ("natures", "doctor"),
    [
        ([Nature.LOST], lambda entries: entries[1:]),
        ([Nature.DOUBLED], lambda entries: [*entries, entries[0]]),
        ([Nature.LOST, Nature.DOUBLED], lambda entries: [entries[0]._replace(points=Decimal("0.01")), *entries[1:]]),
        ([Nature.LOST, Nature.DOUBLED], lambda entries: [entries[0]._replace(card="other"), *entries[1:]]),
    ],
    ids=["lost", "doubled", "other points", "another card"],
)
def test_a_wrong_entry_of_the_ledger_is_a_mismatch(
    natures: list[Nature], doctor: Callable[[list[LedgerEntry]], list[LedgerEntry]], expected: Expected, right: Outputs
) -> None:
    """The ledger has each notification once."""
    found = mismatches(expected, replace(right, ledger=doctor(in_ledger(right))))
    assert natures == [mismatch.nature for mismatch in found]


def test_one_wrong_total_is_one_mismatch(expected: Expected, right: Outputs) -> None:
    """The last total of one customer is wrong."""
    wrong = {**right.notifications[-1], "TotalLoyaltyPoints": Decimal(-1)}
    assert len(mismatches(expected, replace(right, notifications=[*right.notifications[:-1], wrong]))) == 1
