"""Decimals read as text."""

import copy
import json
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import schemas
from schemas.topics import LOYALTY_BALANCES
from services.messaging import decimals
from services.messaging.avro import UndecodableError, decoder, encoder, record_decoder
from services.messaging.schema_ids import FolderSchemaIds

IDS = FolderSchemaIds()
POINTS = st.none() | st.decimals(Decimal(-(10**15)), Decimal(10**15), places=2)


@given(number=st.integers(-(10**30), 10**30), scale=st.integers(0, 6))
def test_text_is_that_of_the_decimal(number: int, scale: int) -> None:
    """To the digit, whatever the sign and the scale; an integer takes as many bytes as it needs or more."""
    exact = Context(prec=60)
    unscaled = number.to_bytes(16, "big", signed=True)

    assert f"{exact.scaleb(Decimal(number), -scale):f}" == decimals.text(unscaled, scale)


@given(points=st.lists(POINTS, min_size=3, max_size=3))
def test_a_record_is_the_same_but_for_the_texts(points: list[Decimal | None]) -> None:
    """Every field as with Decimals, each of those as its text; null stays null."""
    available, pending, reserved = points
    record = {
        "CustomerCardNo": "A",
        "TotalLoyaltyPoints": available or Decimal("0.00"),
        "Sequence": 3,
        "UpdatedTime": 2,
        "OpenedTime": 1,
        "AvailableLoyaltyPoints": available,
        "PendingLoyaltyPoints": pending,
        "ReservedLoyaltyPoints": reserved,
        "Tier": "gold",
    }
    value = encoder(LOYALTY_BALANCES, IDS)(record)

    read = decoder(LOYALTY_BALANCES, IDS)(value)

    expected = {name: str(each) if isinstance(each, Decimal) else each for name, each in read.items()}
    assert expected == decoder(LOYALTY_BALANCES, IDS, decimals_as_text=True)(value)


def test_decimals_of_another_scale_are_refused() -> None:
    """The same bytes would be other points."""
    schema: Any = copy.deepcopy(schemas.current("Balance"))
    schema["fields"][1]["type"]["scale"] = 3
    value = encoder(LOYALTY_BALANCES, IDS)(
        {"CustomerCardNo": "A", "TotalLoyaltyPoints": Decimal("1.00"), "Sequence": 1, "UpdatedTime": 1}
    )

    with pytest.raises(UndecodableError, match="another scale"):
        record_decoder("Balance", lambda _: json.dumps(schema), decimals_as_text=True)(value)
