"""docs/reference/programme.md shows the points that the domain computes."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from services.domain.accrual import accrual
from services.domain.events import Line, Purchase
from services.programmes.file import parse_programme

DOCS = Path(__file__).resolve().parents[4] / "docs" / "reference"
FRESH = [
    each
    for each in re.findall(
        r"^```yaml\n(.*?)^```",
        (DOCS / "programme.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    if "name: fresh" in each
]


def bought(text: str, tier: str = "", store: str = "", lines: tuple[Line, ...] = ()) -> int:
    """The hundredths that an invoice of 1,000.00 earns on 2026-11-03 at 8:30 in the time zone of the programme."""
    rules = parse_programme(text)
    hour = 3 if "Asia/Kolkata" in text else 8
    created = int(datetime(2026, 11, 3, hour, 30 if hour == 8 else 0, tzinfo=UTC).timestamp() * 1000)
    invoice = Purchase(created, "1", Decimal("1000.00"), store, created_time=created, lines=lines)
    return accrual(invoice, rules, tier).points


def test_silver_customers_in_diwali() -> None:
    """The base is 20.00, the tier adds 5.00 and diwali adds 25.00."""
    assert 5_000 == bought((DOCS / "programme-example.yaml").read_text(encoding="utf-8"), "silver")


@pytest.mark.parametrize(("combining", "points"), [("all", 4_700), ("best", 4_500)])
def test_campaigns_combine(combining: str, points: int) -> None:
    """Base 20.00, diwali 20.00, fresh 2.00, welcome 5.00. With best, fresh adds nothing, because diwali adds more."""
    (example,) = FRESH
    text = f"loyalty-factor: 0.02\n{example}".replace("combining: all", f"combining: {combining}")
    lines = (Line("1001", Decimal("200.00")), Line("9999", Decimal("800.00")))
    assert points == bought(text, store="STR1534", lines=lines)
