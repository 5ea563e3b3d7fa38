"""The texts of differences. The topic audit-runs keeps them, and an erasure does not reach it."""

from dataclasses import replace
from typing import Any

import pytest

from services.audit.wording import wrong_field, wrong_fields
from services.domain.entries import BalanceDetails
from tests.support.builders import entry

POINTS = ("points", "total", "available", "pending", "reserved", "debt", "reserved_debt", "earned_in_period")
PERSONAL = ("reason", "actor", "counterparty", "moved_to", "former_cards", "MovedTo", "CustomerCardNo")


@pytest.mark.parametrize(
    ("names", "expected", "found", "text"),
    [
        (POINTS, 105, -200, "is -2.00 and should be 1.05"),
        (("tier", "sequence"), 105, 200, "is 200 and should be 105"),
        (PERSONAL, "CARD1", "CARD2", "differs"),
        (
            ("purchases", "returns", "commands"),
            {"a": 1, "b": 2, "c": 3},
            {"c": 3, "b": 4, "d": 5},
            "differs at a, b, d",
        ),
    ],
)
def test_a_text_shows_no_card_no_free_text_and_no_basket(names: Any, expected: Any, found: Any, text: str) -> None:
    """Points are shown as the customer sees them."""
    assert [f"{name} {text}" for name in names] == [wrong_field(name, expected, found) for name in names]


def test_the_further_members_of_a_balance_are_not_compared() -> None:
    """A recorded entry does not have them. They name the card to which the account has moved."""
    expected = replace(entry(1), balance_details=BalanceDetails(moved_to="CARD2"))
    assert "" == wrong_fields(expected, entry(1))
    assert "sequence is 2 and should be 1" == wrong_fields(expected, replace(entry(1), sequence=2))
