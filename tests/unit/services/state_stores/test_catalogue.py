"""The JSON bodies that the stores make of their changelog records."""

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import schemas
from schemas.topics import LOYALTY_BALANCES, LOYALTY_DECISIONS, LOYALTY_PROGRAMMES, STORE_SALES, STORES, Topic
from services.codecs.records import mark_of
from services.messaging.avro import UndecodableError, encoder, header
from services.state_stores import catalogue
from services.state_stores.definition import StoreDefinition, View
from tests.support.builders import IDS

TABLE = {definition.name: definition for definition in catalogue.stores(IDS)}
SALES = {
    "StoreID": "STR1",
    "WindowStart": 1_700_000_040_000,
    "WindowEnd": 1_700_000_100_000,
    "Count": 3,
    "Sum": Decimal("100.00"),
    "Minimum": Decimal("-0.50"),
    "Maximum": Decimal("99.00"),
    "Sequence": 3,
    "UpdatedTime": 1_700_000_099_999,
}


def view(name: str, topic: Topic, key: bytes, record: dict[str, Any]) -> View:
    return TABLE[name].view(key, encoder(topic, IDS)(record))


def test_every_kind_is_in_the_table() -> None:
    """The kinds are right, and a derived store has the changelog of its source, which precedes it."""
    assert {"keyed", "derived", "windowed", "global"} == {definition.kind for definition in TABLE.values()}
    seen: dict[str, StoreDefinition] = {}
    for name, definition in TABLE.items():
        if definition.derived:
            assert definition.changelog == seen[definition.derived.source].changelog
        seen[name] = definition


def test_a_window_shows_exact_amounts_and_their_average() -> None:
    """Amounts are strings with two decimal places, times are ISO 8601, and the average is rounded half up."""
    shown = view("store-sales", STORE_SALES, b"STR1@1700000040000", SALES)

    assert (3, None) == (shown.sequence, shown.updated_time)
    assert orjson.loads(shown.body) == {
        "StoreID": "STR1",
        "WindowStart": "2023-11-14T22:14:00Z",
        "WindowEnd": "2023-11-14T22:15:00Z",
        "Count": 3,
        "Sum": "100.00",
        "Minimum": "-0.50",
        "Maximum": "99.00",
        "Average": "33.33",
        "Sequence": 3,
        "UpdatedTime": "2023-11-14T22:14:59.999000Z",
    }


@given(cents=st.integers(-(10**28) + 1, 10**28 - 1), count=st.integers(1, 2**63 - 1))
def test_averages_are_rounded_once(cents: int, count: int) -> None:
    """The average is rounded half up, away from zero, for sums of any size. Integers prove it."""
    body = catalogue.sales_body({**SALES, "Sum": Decimal(cents).scaleb(-2), "Count": count})

    rounded = (2 * abs(cents) + count) // (2 * count)
    shown = orjson.loads(body)["Average"]
    assert (rounded if cents > 0 else -rounded) == int(shown.replace(".", ""))
    assert shown != "-0.00"


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        (b"STR1@1700000040001", {}),
        (b"STR1", {}),
        (b"STR2@1700000040000", {}),
        (b"STR1@1700000040000", {"Count": 0}),
        (b"STR1@1700000040000", {"UpdatedTime": 2**62}),
    ],
)
def test_a_window_that_contradicts_itself_is_unreadable(key: bytes, changed: dict[str, Any]) -> None:
    """The key is not the key of the value, the window has no invoices, or a time is after the year 9999."""
    with pytest.raises(UndecodableError):
        view("store-sales", STORE_SALES, key, {**SALES, **changed})


def test_a_damaged_sum_of_any_size_is_unreadable() -> None:
    """No writer makes such a sum, but damaged bytes can. Three bytes of the sum become fifty."""
    value = encoder(STORE_SALES, IDS)({**SALES, "Sum": Decimal("12345.67")})
    damaged = value.replace(b"\x06\x12\xd6\x87", b"\x64" + b"\x7f" * 50)
    assert len(value) + 47 == len(damaged)
    with pytest.raises(UndecodableError, match="must have at most 16"):
        TABLE["store-sales"].view(b"STR1@1700000040000", damaged)


def test_a_shop_counts_by_its_last_record() -> None:
    """The reference topic has no sequence numbers, and its records are shown unchanged."""
    shop = {"StoreID": "STR1", "Name": "Pune 2", "City": "Pune", "State": "Maharashtra"}

    shown = view("stores", STORES, b"STR1", shop)

    assert (None, shop) == (shown.sequence, orjson.loads(shown.body))
    with pytest.raises(UndecodableError):
        view("stores", STORES, b"STR2", shop)


BALANCE = {
    "CustomerCardNo": "4711",
    "TotalLoyaltyPoints": Decimal("30.00"),
    "Sequence": 4,
    "UpdatedTime": 1_700_000_000_000,
    "OpenedTime": 1_600_000_000_000,
    "AvailableLoyaltyPoints": Decimal("-2.50"),
    "PendingLoyaltyPoints": Decimal("20.00"),
    "ReservedLoyaltyPoints": Decimal("12.50"),
    "Tier": "gold",
    "NextExpiryTime": 1_800_000_000_000,
    "NextExpiryPoints": Decimal("20.00"),
    "Blocked": True,
    "MovedTo": "4712",
}


def test_a_balance_shows_all_its_parts() -> None:
    """It has the points as strings, the tier, the next expiry, the block, the new card, and the opened time."""
    shown = view("customer-balances", LOYALTY_BALANCES, b"4711", BALANCE)

    assert (4, 1_600_000_000_000, 1_700_000_000_000) == (shown.sequence, shown.opened_time, shown.updated_time)
    assert orjson.loads(shown.body) == {
        "CustomerCardNo": "4711",
        "TotalLoyaltyPoints": "30.00",
        "AvailableLoyaltyPoints": "-2.50",
        "PendingLoyaltyPoints": "20.00",
        "ReservedLoyaltyPoints": "12.50",
        "Tier": "gold",
        "NextExpiryTime": "2027-01-15T08:00:00Z",
        "NextExpiryPoints": "20.00",
        "Blocked": True,
        "MovedTo": "4712",
        "Sequence": 4,
        "OpenedTime": "2020-09-13T12:26:40Z",
        "UpdatedTime": "2023-11-14T22:13:20Z",
    }


def test_a_balance_of_release_0_1_has_unknown_parts() -> None:
    """Schema id 11 has no next expiry, no block and no new card."""
    writer = json.loads(schemas.schema_text("history/Balance-2.avsc"))
    body = io.BytesIO()
    fastavro.schemaless_writer(body, writer, {field["name"]: BALANCE[field["name"]] for field in writer["fields"]})

    found = orjson.loads(TABLE["customer-balances"].view(b"4711", header(11) + body.getvalue()).body)

    assert ("30.00", "-2.50", "20.00", "12.50") == tuple(
        found[f"{kind}LoyaltyPoints"] for kind in ("Total", "Available", "Pending", "Reserved")
    )
    unknown = ("NextExpiryTime", "NextExpiryPoints", "Blocked", "MovedTo")
    assert [None] * 4 == [found[name] for name in unknown]


def test_a_decision_is_ready_to_send() -> None:
    """A mark shows only that a command was sent. A decision has points as strings and times in ISO 8601."""
    mark = mark_of("C-1", "reserve", "beef")
    decided = {
        **mark,
        "Sequence": 2,
        "Status": "done",
        "CustomerCardNo": "4711",
        "RedemptionID": "C-1",
        "Points": Decimal("10.00"),
        "ExpiresTime": 1_700_000_000_000,
        "AccountSequence": 5,
    }

    shown = [view("decisions", LOYALTY_DECISIONS, b"C-1", record) for record in (mark, decided)]

    assert [1, 2] == [each.sequence for each in shown]
    bodies = [orjson.loads(each.body) for each in shown]
    assert {"CommandID": "C-1", "Status": "pending", "Kind": "reserve", "RequestHash": "beef"} == {
        name: value for name, value in bodies[0].items() if value is not None
    }
    assert ("done", "4711", "10.00", "C-1", "2023-11-14T22:13:20Z", 5) == tuple(
        bodies[1][name]
        for name in ("Status", "CustomerCardNo", "Points", "RedemptionID", "ExpiresTime", "AccountSequence")
    )
    with pytest.raises(UndecodableError):
        view("decisions", LOYALTY_DECISIONS, b"C-2", mark)


def test_a_version_of_the_programme_shows_its_file() -> None:
    """The text is shown as it was published, under the number of its version. Another key is refused."""
    version = {"Version": 3, "EffectiveTime": 1_700_000_000_123, "PublishedTime": 0, "Programme": "version: 1\n"}

    shown = orjson.loads(view("programmes", LOYALTY_PROGRAMMES, b"3", version).body)

    assert {**version, "EffectiveTime": "2023-11-14T22:13:20.123000Z", "PublishedTime": "1970-01-01T00:00:00Z"} == shown
    with pytest.raises(UndecodableError):
        view("programmes", LOYALTY_PROGRAMMES, b"4", version)
