"""Hypothesis strategies: invoices, events of an account, programmes and Avro schemas."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Any

from hypothesis import strategies as st

from services.codecs.events import LAST_INVOICE_TIME
from services.domain.account.lots import Terms
from services.domain.account.model import Account, PastPurchase
from services.domain.events import (
    Absorb,
    Adjust,
    Block,
    Capture,
    Erase,
    Forward,
    Line,
    Merge,
    Purchase,
    Receive,
    Replace,
    Reserve,
    SentLot,
    Transfer,
    Unblock,
    Void,
)
from services.domain.programme import (
    BlockedCards,
    Campaign,
    Combining,
    Period,
    Programme,
    Programmes,
    SpentReturns,
    TaxBasis,
    Tier,
    TimeBasis,
)

# Avro strings are UTF-8, so lone surrogates cannot reach the system.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
BLANK_OR_TEXT = st.none() | st.sampled_from(["", " ", "\t\n"]) | TEXTS
AMOUNTS = st.integers(-10_000_000_00, 10_000_000_00).map(lambda cents: cents / 100)
ANY_AMOUNT = st.none() | st.floats() | AMOUNTS | st.sampled_from([1e11, -1e11, 9.99e10])
TIMES = st.integers(0, 4_102_444_800_000)

ITEMS = st.fixed_dictionaries(
    {
        "ItemCode": BLANK_OR_TEXT,
        "ItemDescription": BLANK_OR_TEXT,
        "ItemPrice": ANY_AMOUNT,
        "ItemQty": st.none() | st.integers(-(2**31), 2**31 - 1),
        "TotalValue": ANY_AMOUNT,
    }
)
ADDRESSES = st.fixed_dictionaries(
    dict.fromkeys(("AddressLine", "City", "State", "PinCode", "ContactNumber"), BLANK_OR_TEXT)
)
ANY_INVOICES = st.fixed_dictionaries(
    {
        **dict.fromkeys(
            ("InvoiceNumber", "CustomerCardNo", "PaymentMethod", "StoreID", "PosID", "CashierID"), BLANK_OR_TEXT
        ),
        **dict.fromkeys(("TotalAmount", "TaxableAmount", "CGST", "SGST", "CESS"), ANY_AMOUNT),
        "CreatedTime": st.none() | TIMES,
        "NumberOfItems": st.none() | st.integers(0, 1000),
        "CustomerType": st.sampled_from([None, "PRIME", "Prime", "NONPRIME", ""]),
        "DeliveryType": st.sampled_from([None, "HOME-DELIVERY", "home-delivery", "TAKEAWAY"]),
        "DeliveryAddress": st.none() | ADDRESSES,
        "InvoiceLineItems": st.none() | st.lists(ITEMS, max_size=3),
        "OriginalInvoiceNumber": st.sampled_from([None, "", " \t\0", "51402977", "51402977", "5" * 128, "5" * 129]),
    }
)
"""Every field can be missing, blank or extreme."""

NUMBERS = st.from_regex(r"[0-9]{8}", fullmatch=True)
VALID_INVOICES = st.builds(
    lambda invoice, number, store, amount, card, address, contact: {
        **invoice,
        "InvoiceNumber": number,
        "StoreID": store,
        "TotalAmount": amount,
        **dict.fromkeys(("TaxableAmount", "CGST", "SGST", "CESS"), amount),
        "CustomerCardNo": card,
        "DeliveryAddress": {**address, "AddressLine": "1 High Street", "ContactNumber": contact},
        "InvoiceLineItems": [
            {**item, "ItemPrice": amount, "TotalValue": -amount if number % 2 else amount}
            for number, item in enumerate(invoice["InvoiceLineItems"] or [])
        ],
    },
    ANY_INVOICES,
    NUMBERS,
    NUMBERS,
    AMOUNTS,
    NUMBERS,
    ADDRESSES,
    NUMBERS,
)
"""Every field that validation requires is present. Lines have both signs, so some invoices are exchanges."""

FLAWS = [
    *({name: blank} for name in ("InvoiceNumber", "StoreID", "CustomerCardNo") for blank in (None, "", " \t")),
    *(
        {name: amount}
        for name in ("TotalAmount", "TaxableAmount", "CGST", "SGST", "CESS")
        for amount in (float("nan"), float("inf"), -1e11)
    ),
    {"TotalAmount": None},
    {"CustomerType": " PRIME"},
    {"DeliveryType": "HOME-DELIVERY\t"},
    *({"CustomerCardNo": card} for card in (" 4629185211", "4629185211\t", f"p1-{'a2' * 26}")),
    *(
        {"InvoiceLineItems": [{"ItemPrice": 1.0, "TotalValue": 1.0}, {name: amount}]}
        for name in ("ItemPrice", "TotalValue")
        for amount in (float("nan"), 1e300)
    ),
    {"DeliveryAddress": None},
    *({"DeliveryAddress": {"AddressLine": "1 High Street", "ContactNumber": contact}} for contact in (None, " ")),
    {"DeliveryAddress": {"AddressLine": "\t", "ContactNumber": "1"}},
    *({name: "é" * 129} for name in ("InvoiceNumber", "StoreID", "PosID", "CustomerCardNo", "PaymentMethod")),
    {"CustomerType": "x" * 129},
    {"DeliveryType": "x" * 129},
    *(
        {"DeliveryAddress": {"AddressLine": "1 High Street", "ContactNumber": "1", name: "x" * 129}}
        for name in ("City", "State", "PinCode")
    ),
    {"InvoiceLineItems": [{}] * 10_001},
]
"""For each validation rule, fields that break it. The other fields can have any values."""


def flawed(invoice: dict[str, Any], flaw: dict[str, Any]) -> dict[str, Any]:
    """The invoice with fields that break one rule."""
    return {**invoice, "CustomerType": "PRIME", "DeliveryType": "HOME-DELIVERY", **flaw}


ACCOUNT_ITEMS = ["milk", "bread", "gift-card"]
_EVENT_TIMES = st.integers(1, 40 * 24).map(lambda hour: hour * 3_600_000)
_MONEY = st.integers(0, 300_00).map(lambda cents: Decimal(cents).scaleb(-2))
_INVOICE_NUMBERS = st.integers(0, 9).map("invoice-{}".format)
_COMMAND_IDS = st.integers(0, 9).map("command-{}".format)
_POINTS = st.integers(1, 12_00)
_LINES = st.lists(st.builds(Line, st.sampled_from(ACCOUNT_ITEMS), _MONEY), max_size=3).map(tuple)
_COMMAND = {"append_time": _EVENT_TIMES, "command_id": _COMMAND_IDS}

PURCHASES = st.builds(
    Purchase,
    _EVENT_TIMES,
    _INVOICE_NUMBERS,
    _MONEY,
    st.sampled_from(["here", "there"]),
    st.sampled_from(["PRIME", "Prime", "NONPRIME"]),
    st.none() | TIMES | _EVENT_TIMES,
    st.none(),
    _LINES,
    st.none() | _MONEY,
)
RETURNS = st.builds(
    lambda purchase, original, sign: replace(
        purchase,
        total_amount=purchase.total_amount if original and sign else -purchase.total_amount,
        original_invoice_number=original,
    ),
    PURCHASES,
    st.none() | _INVOICE_NUMBERS,
    st.booleans(),
)
COMMANDS = st.one_of(
    st.builds(Reserve, **_COMMAND, points=_POINTS),
    st.builds(Capture, **_COMMAND, redemption_id=_COMMAND_IDS),
    st.builds(Void, **_COMMAND, redemption_id=_COMMAND_IDS),
    st.builds(Adjust, **_COMMAND, points=_POINTS | _POINTS.map(int.__neg__), allow_negative=st.booleans()),
    st.builds(Transfer, **_COMMAND, points=_POINTS, counterparty=st.sampled_from(["card", "other"])),
    st.builds(
        Receive,
        **_COMMAND,
        counterparty=st.just("other"),
        lots=st.lists(st.builds(SentLot, _POINTS, st.just(0) | _EVENT_TIMES), min_size=1, max_size=2).map(tuple),
    ),
    st.builds(Forward, **_COMMAND, invoice=RETURNS.filter(lambda invoice: invoice.original_invoice_number is not None)),
    st.builds(Block, **_COMMAND),
    st.builds(Unblock, **_COMMAND),
)
"""Commands of the customer ``card``, without erasures."""

ERASURES = st.builds(Erase, **_COMMAND)
_OPTIONAL_TIMES = st.just(0) | _EVENT_TIMES
_PAST_PURCHASES = st.builds(
    PastPurchase,
    append_time=_EVENT_TIMES,
    amount=_MONEY,
    earned=_POINTS,
    programme_version=st.just(0),
    tier=st.sampled_from(["", "gold"]),
    created_time=_OPTIONAL_TIMES,
    store_id=st.sampled_from(["", "here"]),
    lines=_LINES,
    items=st.none() | st.dictionaries(st.sampled_from(ACCOUNT_ITEMS), _MONEY, max_size=2),
    decided_time=_OPTIONAL_TIMES | st.just(LAST_INVOICE_TIME),
    expired=st.just(0) | _POINTS,
    counted_until=_OPTIONAL_TIMES,
)
MOVES = st.one_of(
    st.builds(Replace, **_COMMAND, counterparty=st.sampled_from(["card", "other"])),
    st.builds(Merge, **_COMMAND, counterparty=st.just("third")),
    st.builds(
        Absorb,
        **_COMMAND,
        counterparty=st.sampled_from(["other", "third"]),
        part=st.builds(
            Account,
            st.just(1),
            lots=st.dictionaries(
                st.builds(Terms, _OPTIONAL_TIMES, _OPTIONAL_TIMES, _OPTIONAL_TIMES), _POINTS, max_size=2
            ),
            purchases=st.dictionaries(_INVOICE_NUMBERS.map("moved-{}".format), _PAST_PURCHASES, max_size=2),
        ),
    ),
)
"""Moves of the account ``card`` to other cards, and of their accounts to ``card``."""

ACCOUNT_EVENTS = st.lists(PURCHASES | PURCHASES | RETURNS | COMMANDS, max_size=14)
ACCOUNT_EVENTS_WITH_ERASURES = st.lists(PURCHASES | RETURNS | COMMANDS | MOVES | ERASURES, max_size=14)
"""Events of an account within 40 days, in any order, with duplicates and invalid commands."""

_DAY = 24 * 3_600_000
_CAMPAIGNS = st.builds(
    Campaign,
    name=st.sampled_from(["spring", "breakfast", "opening"]),
    weekdays=st.just(frozenset()) | st.just(frozenset({0, 3, 5})),
    hours=st.none() | st.just((6, 11)),
    stores=st.just(frozenset()) | st.just(frozenset({"here"})),
    items=st.just(frozenset()) | st.sets(st.sampled_from(ACCOUNT_ITEMS)).map(frozenset),
    multiplier=st.sampled_from([Decimal(0), Decimal(1), Decimal("1.5"), Decimal(3)]),
    bonus=st.sampled_from([0, 50]),
)
ACCOUNT_PROGRAMMES = st.builds(
    Programme,
    loyalty_factor=st.sampled_from([Decimal("0.02"), Decimal("0.1")]),
    rounding=st.sampled_from([ROUND_HALF_UP, ROUND_FLOOR]),
    time_zone=st.sampled_from(["UTC", "Europe/Berlin"]),
    pending=st.sampled_from([0, 0, 3 * _DAY]),
    valid_for=st.sampled_from([None, 2 * _DAY, 10 * _DAY]),
    expiry_notice=st.sampled_from([0, 4 * _DAY]),
    reserve_for=st.sampled_from([900_000, 5 * _DAY]),
    return_window=st.sampled_from([5 * _DAY, 90 * _DAY]),
    spent_returns=st.sampled_from(SpentReturns),
    tier_period=st.sampled_from([None, Period.MONTH]),
    tiers=st.sampled_from([(), (Tier("silver", 5_00, Decimal("1.5")), Tier("gold", 15_00, Decimal(2)))]),
    combining=st.sampled_from(Combining),
    campaigns=st.lists(_CAMPAIGNS, max_size=2).map(tuple),
    tax_basis=st.sampled_from(TaxBasis),
    excluded_items=st.sampled_from([frozenset(), frozenset(), frozenset({"gift-card"})]),
    minimum_spend=st.sampled_from([Decimal(0), Decimal(0), Decimal(20)]),
    cap_per_invoice=st.sampled_from([None, None, 2_00]),
    cap_per_day=st.sampled_from([None, None, 5_00]),
    time_basis=st.sampled_from(TimeBasis),
    largest_backdating=st.sampled_from([0, 3 * _DAY, 30 * _DAY]),
    blocked_cards=st.sampled_from(BlockedCards),
)
PROGRAMMES = st.builds(
    lambda first, second: Programmes.of([first, replace(second, version=1, effective_time=20 * _DAY)]),
    ACCOUNT_PROGRAMMES,
    ACCOUNT_PROGRAMMES,
)
"""Two versions. The second takes effect in the middle of ACCOUNT_EVENTS."""

DECIMAL_SCHEMA = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
_AVRO_DEFAULTS = {"int": 0, "long": 0, "double": 0.0, "string": "", "boolean": False}

_AVRO_PRIMITIVES = st.sampled_from(["int", "long", "float", "double", "string", "bytes", "boolean"])
_AVRO_TYPES = st.recursive(
    _AVRO_PRIMITIVES,
    lambda inner: (
        inner.map(lambda of: {"type": "array", "items": of})
        | inner.map(lambda of: {"type": "map", "values": of})
        | inner.filter(lambda of: not isinstance(of, list)).map(lambda of: ["null", of])
    ),
    max_leaves=2,
)
_FIELD_NAMES = st.sampled_from("abcde")
AVRO_FIELDS = st.dictionaries(_FIELD_NAMES, _AVRO_TYPES, min_size=1, max_size=4)


def record_schema(fields: Mapping[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": of} for each, of in fields.items()]}


@st.composite
def schema_changes(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema of a writer, and one of a reader with removed, added, changed, renamed and nullable fields."""
    writer = draw(AVRO_FIELDS)
    reader = copy.deepcopy(writer)
    fields: list[dict[str, Any]] = []
    for name, of in reader.items():
        match draw(st.integers(0, 5)):
            case 0:
                continue
            case 1:
                fields.append({"name": name, "type": draw(_AVRO_TYPES)})
            case 2 if not isinstance(of, list):
                fields.append({"name": name, "type": ["null", of]})
            case 3:
                fields.append({"name": f"new_{name}", "aliases": [name], "type": of})
            case _:
                fields.append({"name": name, "type": of})
    if draw(st.booleans()):
        of = draw(st.sampled_from(sorted(_AVRO_DEFAULTS)))
        fields.append({"name": "more", "type": of} | ({"default": _AVRO_DEFAULTS[of]} if draw(st.booleans()) else {}))
    return record_schema(writer), {"type": "record", "name": "R", "fields": fields}
