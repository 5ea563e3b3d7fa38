"""Strategies for purchases, returns and exchanges of a card, and for their total without the domain's rules."""

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal

from hypothesis import settings
from hypothesis import strategies as st

from services.domain.events import Line, Purchase
from services.domain.programme import DAY, LOYALTY_FACTOR
from tests.support.examples import examples

HISTORIES = int(os.environ.get("TEST_HISTORIES", examples(300)))
"""The number of random histories of each test. ``TEST_HISTORIES=10000`` makes a long run."""

many = settings(max_examples=HISTORIES, deadline=None)

_TIMES = st.integers(1, 30 * DAY)
_ITEMS = st.sampled_from(["milk", "bread", "gift-card"])
_VALUES = st.integers(1, 40_00).map(lambda cents: Decimal(cents).scaleb(-2))
_LINES = st.lists(st.builds(Line, _ITEMS, _VALUES), min_size=1, max_size=4)
_NUMBERS = st.integers(0, 7).map("invoice-{}".format)


def invoice(number: str, original: str | None, lines: list[Line], time: int) -> Purchase:
    total = sum((line.value for line in lines), Decimal(0))
    return Purchase(time, number, total, "here", original_invoice_number=original, lines=tuple(lines))


def _negated(lines: list[Line]) -> list[Line]:
    return [replace(line, value=-line.value) for line in lines]


_PURCHASES = st.builds(lambda lines, time: (None, lines, time), _LINES, _TIMES)
_RETURNS = st.builds(
    lambda original, lines, time, negative: (original, _negated(lines) if negative else lines, time),
    *(_NUMBERS, _LINES, _TIMES, st.booleans()),
)
_EXCHANGES = st.builds(
    lambda original, back, lines, time: (original, _negated(back) + lines, time), _NUMBERS, _LINES, _LINES, _TIMES
)
RETURN_HISTORIES = st.lists(_PURCHASES | _PURCHASES | _RETURNS | _EXCHANGES, max_size=8).map(
    lambda invoices: [invoice(f"invoice-{number}", *each) for number, each in enumerate(invoices)]
)
"""Each invoice has its own number. A return can name a purchase, a return, an exchange, itself, or no invoice."""


@st.composite
def _complete_returns(draw: st.DrawFn) -> list[Purchase]:
    """A purchase with discounts, and returns and exchanges that bring all of it back, also what the exchanges sold."""
    goods = [Line(item, draw(_VALUES)) for item in draw(st.lists(_ITEMS, min_size=1, max_size=3, unique=True))]
    rest = sum((line.value for line in goods), Decimal(0))
    lines = [*goods]
    for _ in range(draw(st.integers(1, 2))):
        # The largest discount leaves 0.01.
        discount = min(rest - Decimal("0.01"), draw(_VALUES | st.just(Decimal(1_000))))
        if discount > 0:
            rest -= discount
            lines.append(Line(draw(st.sampled_from(["discount", "", goods[0].item_code])), -discount))
    parts: list[list[Line]] = [[] for _ in range(draw(st.integers(1, 3)))]
    for line in lines:
        first = (line.value * draw(st.sampled_from([Decimal(1), Decimal("0.4")]))).quantize(Decimal("0.01"))
        for value in filter(None, (first, line.value - first)):
            draw(st.sampled_from(parts)).append(Line(line.item_code, -value, takes_back_discount=value < 0))
    invoices = [invoice("bought", None, lines, draw(_TIMES))]
    for number, part in enumerate(filter(None, parts)):
        # If a part only takes back discounts, a further line makes it a sale for more money, not an exchange.
        sold = (
            [Line(f"new {number}", draw(_VALUES))]
            if min(line.value for line in part) < 0 and draw(st.booleans())
            else []
        )
        invoices.append(invoice(f"back {number}", "bought", part + sold, draw(_TIMES)))
        if sold:
            invoices.append(invoice(f"last {number}", f"back {number}", _negated(sold), draw(_TIMES)))
    return invoices


COMPLETE_RETURNS = _complete_returns()
"""Nothing of the purchase stays with the customer, and no points may stay. The till rounds no amount."""


def expected_total(invoices: list[Purchase], counted: Callable[[str], bool] = lambda _: True) -> int:
    """The points in hundredths. Of each item, the value counts that was bought and not returned.

    Each invoice is rounded once.

    Args:
        counted: whether the purchase with this number earns for the card.
    """
    bought: defaultdict[str, defaultdict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    returned: defaultdict[str, defaultdict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for each in invoices:
        original = each.original_invoice_number
        signs = {line.value > 0 for line in each.lines}
        for line in each.lines:
            if original is None or (len(signs) == 2 and line.value > 0):
                bought[each.invoice_number][line.item_code] += line.value
            elif original != each.invoice_number:
                returned[original][line.item_code] += abs(line.value)
    rest = (
        sum((max(Decimal(0), value - returned[number][item]) for item, value in items.items()), Decimal(0))
        for number, items in bought.items()
        if counted(number)
    )
    return sum(int((amount * LOYALTY_FACTOR * 100).quantize(Decimal(1), ROUND_HALF_UP)) for amount in rest)
