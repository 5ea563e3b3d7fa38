"""The rules of a valid command."""

from decimal import Decimal
from typing import Any

import pytest

from services.domain.command_rules import KINDS, first_violation
from services.domain.validation import LARGEST_AMOUNT

CARD = "5003"
INVOICE = {"InvoiceNumber": "1", "TotalAmount": 1.0, "TaxableAmount": None, "InvoiceLineItems": [{"TotalValue": 1.0}]}


def command(**changes: Any) -> dict[str, Any]:
    """A valid reservation with changes."""
    texts = dict.fromkeys(("RequestHash", "RedemptionID", "Reason", "Actor", "Counterparty", "OriginID"), "")
    fixed = {"CommandID": "c1", "Kind": "reserve", "CustomerCardNo": CARD, "IssuedTime": 0, "Points": Decimal("1.00")}
    return {**texts, **fixed, "Lots": [], "Invoice": None, **changes}


def of_kind(kind: str) -> dict[str, Any]:
    """A valid command of this kind."""
    lots = [{"Points": 100, "ExpiresTime": 0}]
    return command(Kind=kind, RedemptionID="r1", Counterparty="5004", Lots=lots, Invoice=INVOICE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_of_every_kind_is_valid(kind: str) -> None:
    assert first_violation(of_kind(kind), CARD.encode()) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"CommandID": " \u00a0"}, "CommandID is blank"),
        ({"CommandID": "x" * 129}, "CommandID is too long"),
        ({"Reason": "x" * 501}, "Reason is too long"),
        ({"Kind": "gift"}, "Kind is none of " + ", ".join(KINDS)),
        ({"Points": Decimal(LARGEST_AMOUNT)}, "Points are out of range"),
        ({"Points": Decimal(0)}, "Points are not above 0"),
        ({"Points": None}, "Points are missing"),
        ({"Kind": "adjust", "Points": None}, "Points are missing"),
        ({"Kind": "import", "Points": None}, "Lots do not make up the Points"),
        (
            {"Kind": "import", "Points": None, "Lots": [{"Points": LARGEST_AMOUNT * 100, "ExpiresTime": 0}]},
            "Lots do not make up the Points",
        ),
        ({"Kind": "adjust", "Points": Decimal(0)}, "Points are 0"),
        ({"Kind": "void"}, "RedemptionID is blank"),
        ({"Kind": "transfer"}, "Counterparty is blank"),
        ({"Kind": "import", "Lots": [{"Points": 99, "ExpiresTime": 0}]}, "Lots do not make up the Points"),
        ({"Kind": "import", "Lots": [{"Points": 100, "ExpiresTime": -1}]}, "Lots do not make up the Points"),
        ({"Kind": "forward"}, "the Invoice is missing or not valid"),
        ({"Kind": "forget", "Invoice": {**INVOICE, "InvoiceNumber": "\t"}}, "the Invoice is missing or not valid"),
        (
            {"Kind": "redirect", "Invoice": {**INVOICE, "TotalAmount": float("nan")}},
            "the Invoice is missing or not valid",
        ),
        ({"Kind": "forward", "Invoice": INVOICE, "IssuedTime": -1}, "IssuedTime is out of range"),
    ],
)
def test_the_reason_of_a_broken_rule(changes: dict[str, Any], reason: str) -> None:
    assert reason == first_violation(command(**changes), CARD.encode())


@pytest.mark.parametrize("key", [None, b"5004"])
def test_the_key_must_be_the_card(key: bytes | None) -> None:
    assert "the key is not the CustomerCardNo" == first_violation(command(), key)
