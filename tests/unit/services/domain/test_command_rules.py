"""The rules of a valid command."""

from decimal import Decimal
from typing import Any

import pytest

from services.domain.command_rules import KINDS, first_violation
from services.domain.formats import LAST_TIME
from services.domain.validation import LARGEST_AMOUNT, MOST_LINE_ITEMS

CARD = "5003"
INVOICE = {"InvoiceNumber": "1", "TotalAmount": 1.0, "TaxableAmount": None, "InvoiceLineItems": [{"TotalValue": 1.0}]}
LOT = {"Points": 100, "ExpiresTime": 0}
LONGEST = {
    **dict.fromkeys(("CommandID", "CustomerCardNo", "RequestHash", "RedemptionID", "Counterparty"), 128),
    "OriginID": 128,
    "Actor": 128,
    "Reason": 500,
}


def command(**changes: Any) -> dict[str, Any]:
    """A valid reservation with changes."""
    texts = dict.fromkeys(("RequestHash", "RedemptionID", "Reason", "Actor", "Counterparty", "OriginID"), "")
    fixed = {"CommandID": "c1", "Kind": "reserve", "CustomerCardNo": CARD, "IssuedTime": 0, "Points": Decimal("1.00")}
    return {**texts, **fixed, "Lots": [], "Invoice": None, **changes}


def of_kind(kind: str) -> dict[str, Any]:
    """A valid command of this kind."""
    return command(Kind=kind, RedemptionID="r1", Counterparty="5004", Lots=[LOT], Invoice=INVOICE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_of_every_kind_is_valid(kind: str) -> None:
    assert first_violation(of_kind(kind), CARD.encode()) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"CommandID": " \u00a0"}, "CommandID is blank"),
        ({"Kind": "gift"}, "Kind is none of " + ", ".join(KINDS)),
        ({"Points": Decimal(LARGEST_AMOUNT)}, "Points are out of range"),
        *(
            ({"Kind": kind, "Points": Decimal(0), "Counterparty": "5004"}, "Points are not above 0")
            for kind in ("reserve", "transfer", "receive", "import")
        ),
        *(({"Kind": kind, "Points": None}, "Points are missing") for kind in ("reserve", "transfer", "adjust")),
        *(
            ({"Kind": "import", "Points": None, "Lots": lots}, "Lots do not make up the Points")
            for lots in (
                [],
                [LOT | {"Points": LARGEST_AMOUNT * 100}],
                [LOT, LOT | {"Points": 0}],
                [LOT | {"ExpiresTime": -1}],
                [LOT | {"ExpiresTime": LAST_TIME + 1}],
                [LOT] * (MOST_LINE_ITEMS + 1),
            )
        ),
        ({"Kind": "adjust", "Points": Decimal(0)}, "Points are 0"),
        *(({"Kind": kind}, "RedemptionID is blank") for kind in ("capture", "void")),
        *(({"Kind": kind}, "Counterparty is blank") for kind in ("transfer", "receive", "replace", "merge", "absorb")),
        ({"Kind": "import", "Lots": [LOT | {"Points": 99}]}, "Lots do not make up the Points"),
        ({"Kind": "forward"}, "the Invoice is missing or not valid"),
        *(
            ({"Kind": kind, "Invoice": INVOICE | wrong}, "the Invoice is missing or not valid")
            for kind, wrong in (
                ("forget", {"InvoiceNumber": "\t"}),
                ("redirect", {"TotalAmount": float("nan")}),
                ("forward", {"TaxableAmount": LARGEST_AMOUNT}),
                ("forward", {"InvoiceLineItems": [{"TotalValue": -LARGEST_AMOUNT}]}),
                ("forward", {"InvoiceLineItems": [{"TotalValue": 1.0}] * (MOST_LINE_ITEMS + 1)}),
            )
        ),
        *(
            ({"Kind": "forward", "Invoice": INVOICE, "IssuedTime": time}, "IssuedTime is out of range")
            for time in (-1, LAST_TIME + 1)
        ),
    ],
)
def test_the_reason_of_a_broken_rule(changes: dict[str, Any], reason: str) -> None:
    assert reason == first_violation(command(**changes), CARD.encode())


@pytest.mark.parametrize(("name", "longest"), LONGEST.items())
def test_a_text_has_a_largest_length(name: str, longest: int) -> None:
    for length, reason in (longest, None), (longest + 1, f"{name} is too long"):
        changed = command(**{name: "x" * length})
        assert reason == first_violation(changed, changed["CustomerCardNo"].encode())


@pytest.mark.parametrize("kind", KINDS)
def test_only_new_points_for_a_pseudonym_are_refused(kind: str) -> None:
    """Release 0.1 can have an account with such a card. Its points can leave, come back, and be erased.

    Another account can be merged into it. The API requires that it exists.
    """
    card = f"p1-{'a2' * 26}"
    reason = "CustomerCardNo is a pseudonym" if kind in ("adjust", "import") else None
    assert reason == first_violation(of_kind(kind) | {"CustomerCardNo": card}, card.encode())
    reason = "Counterparty is a pseudonym" if kind in ("transfer", "replace") else None
    changed = of_kind(kind) | {"Counterparty": card}
    assert reason == first_violation(changed, changed["CustomerCardNo"].encode())


@pytest.mark.parametrize("key", [None, b"5004"])
def test_the_key_must_be_the_card(key: bytes | None) -> None:
    assert "the key is not the CustomerCardNo" == first_violation(command(), key)
