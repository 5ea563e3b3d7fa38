"""Decimals that are decoded as texts."""

import copy
import io
import json
import time
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

import schemas
from schemas.topics import LOYALTY_BALANCES, LOYALTY_COMMANDS
from services.messaging import avro
from services.messaging.avro import UndecodableError, decoder, encoder, header, record_decoder
from services.verdicts import judge_of
from tests.support.builders import IDS
from tests.support.unreadable import zigzag

POINTS = st.none() | st.decimals(Decimal(-(10**15)), Decimal(10**15), places=2)


@given(number=st.integers(-(10**18), 10**18))
def test_a_decimal_of_avro_becomes_its_exact_text(number: int) -> None:
    """This holds for both signs. Avro may use more bytes than the number needs."""
    assert f"{Decimal(number).scaleb(-2):f}" == avro._points_text(number.to_bytes(16, "big", signed=True))


@given(points=st.lists(POINTS, min_size=3, max_size=3))
def test_only_decimals_become_texts(points: list[Decimal | None]) -> None:
    """The record has a text for each Decimal and the same values in the other fields; null stays null."""
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


def test_a_decimal_of_many_bytes_is_refused_before_it_is_computed() -> None:
    """A million digits would cost seconds of processor time."""
    command = {"CommandID": "1", "CustomerCardNo": "A", "Kind": "adjust", "Points": Decimal(1)}
    value = encoder(LOYALTY_COMMANDS, IDS)(command)
    shortest = b"\x02\x02\x64"  # not null, one byte, 100 hundredths
    assert 1 == value.count(shortest)
    judge = judge_of(LOYALTY_COMMANDS, IDS.known(LOYALTY_COMMANDS))

    def reason(length: int) -> str | None:
        return judge(value.replace(shortest, b"\x02" + zigzag(length) + bytes(length - 1) + b"\x64"), b"A").reason

    assert reason(16) is None
    assert "a decimal has 17 bytes, and must have at most 16" == reason(17)
    started = time.process_time()
    assert "a decimal has 400,000 bytes, and must have at most 16" == reason(400_000)
    assert time.process_time() - started < 1


@pytest.mark.parametrize("as_text", [True, False])
def test_a_decimal_in_the_place_of_a_text_is_refused(*, as_text: bool) -> None:
    """Avro reads the bytes of the decimal as a text."""
    schema: Any = copy.deepcopy(schemas.current("Balance"))
    schema["fields"][0]["type"] = schema["fields"][1]["type"]

    with pytest.raises(UndecodableError, match="schema id 9 has a decimal in the place of another type"):
        record_decoder("Balance", lambda _: json.dumps(schema), decimals_as_text=as_text)(header(9))


def test_decimals_of_another_scale_are_refused() -> None:
    """With another scale the same bytes mean other points. A new field with another scale does not matter."""
    schema: Any = copy.deepcopy(schemas.current("Balance"))
    schema["fields"][1]["type"]["scale"] = 3
    value = encoder(LOYALTY_BALANCES, IDS)(
        {"CustomerCardNo": "A", "TotalLoyaltyPoints": Decimal("1.00"), "Sequence": 1, "UpdatedTime": 1}
    )

    with pytest.raises(UndecodableError, match="another scale"):
        record_decoder("Balance", lambda _: json.dumps(schema), decimals_as_text=True)(value)
    schema["fields"][1] = {**schema["fields"][1], "name": "Rate"}
    schema["fields"].append(schemas.current("Balance")["fields"][1])
    body = io.BytesIO()
    record = {"CustomerCardNo": "A", "Rate": Decimal("0.125"), "Sequence": 1, "UpdatedTime": 1}
    fastavro.schemaless_writer(
        body, fastavro.parse_schema(schema), record | {"TotalLoyaltyPoints": Decimal("1.00"), "OpenedTime": 1}
    )
    decode = record_decoder("Balance", lambda _: json.dumps(schema), decimals_as_text=True)
    assert "1.00" == decode(header(9) + body.getvalue())["TotalLoyaltyPoints"]
