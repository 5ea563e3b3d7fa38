"""What the stores of the table show of their changelogs' records."""

from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.topics import STORE_SALES, STORES, Topic
from services.messaging.schema_ids import FolderSchemaIds
from services.messaging.wire import UndecodableError, encoder
from services.state_stores import catalogue
from services.state_stores.definition import StoreDefinition, View

IDS = FolderSchemaIds()
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
    """Keyed, derived, windowed and global; a derived store has the changelog of its source, which stands before it."""
    assert {"keyed", "derived", "windowed", "global"} == {definition.kind for definition in TABLE.values()}
    seen: dict[str, StoreDefinition] = {}
    for name, definition in TABLE.items():
        if definition.derived:
            assert definition.changelog == seen[definition.derived.source].changelog
        seen[name] = definition


def test_a_window_shows_exact_amounts_and_their_average() -> None:
    """Amounts are strings with two places, times ISO 8601, the average is rounded half up."""
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
    """Half up, away from zero, for sums of any size: checked in whole numbers."""
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
    """Another key than the value says, no invoices, a time that no calendar has."""
    with pytest.raises(UndecodableError):
        view("store-sales", STORE_SALES, key, {**SALES, **changed})


def test_a_shop_counts_by_its_last_record() -> None:
    """The reference topic has no sequences; what it says is shown as it is."""
    shop = {"StoreID": "STR1", "Name": "Pune 2", "City": "Pune", "State": "Maharashtra"}

    shown = view("stores", STORES, b"STR1", shop)

    assert (None, shop) == (shown.sequence, orjson.loads(shown.body))
    with pytest.raises(UndecodableError):
        view("stores", STORES, b"STR2", shop)
