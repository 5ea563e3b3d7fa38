"""The index of invoices: which card bought an invoice number, and which returns wait for it. Pure functions.

A return names its original invoice, but it may have no card, or another card than the purchase. Then the card of the
return does not say which account loses the points. The index finds the account that bought, and forwards the return to
it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_WAITING = 100
"""The largest number of returns that wait for one invoice. Further returns take no points."""


class Bought(NamedTuple):
    """A purchase with the number. ``card`` bought it."""

    append_time: int
    card: str


class Returned(NamedTuple):
    """A return that names the number as its original.

    Attributes:
        append_time: milliseconds since the epoch.
        card: the card of the return; empty if the return has none. It is also empty while the return waits: the
            customer may be erased meanwhile, and the index must not keep the card.
        invoice: the return itself. This module does not read it.
    """

    append_time: int
    card: str
    invoice: Any


class Forgotten(NamedTuple):
    """The account of this card was erased. The index must delete the card."""

    append_time: int
    card: str


class IndexedInvoice(NamedTuple):
    """What the index knows about a number.

    Attributes:
        card: the card that bought; empty if the purchase is not known.
        waiting: the returns that came before their purchase, the oldest first.
    """

    card: str = ""
    waiting: tuple[Returned, ...] = ()


_ORDER: tuple[type, ...] = (Bought, Returned, Forgotten)
"""The order of news of the same millisecond. The result must not depend on the order in which Spark delivers news."""


@dataclass(slots=True)
class IndexOutcome:
    """The result of some news about one number.

    Attributes:
        invoice: what the index knows now.
        forwarded: the returns that the account of a card must decide, each with that card.
        began, settled, refused: the number of returns that began to wait, that ended their wait because the purchase
            arrived, and that could not wait because too many returns wait already.
    """

    invoice: IndexedInvoice
    forwarded: list[tuple[str, Returned]] = field(default_factory=list)
    began: int = 0
    settled: int = 0
    refused: int = 0


def apply_news(invoice: IndexedInvoice, news: Iterable[Bought | Returned | Forgotten]) -> IndexOutcome:
    """Applies news about one number, in the order of their append times. The argument may have any order.

    The index does not forward a return that has the card of its purchase, because the account of this card reads the
    return itself. The index forwards every return that has waited, because the index did not keep its card. An account
    ignores a forwarded return that it has read itself. If several purchases have the same number, the last one counts.
    """
    outcome = IndexOutcome(invoice)
    for each in sorted(news, key=lambda each: (each.append_time, _ORDER.index(type(each)), repr(each))):
        card, waiting = outcome.invoice
        match each:
            case Bought():
                outcome.invoice = IndexedInvoice(each.card)
                outcome.forwarded += [(each.card, returned) for returned in waiting]
                outcome.settled += len(waiting)
            case Forgotten():
                outcome.invoice = IndexedInvoice("" if card == each.card else card, waiting)
            case Returned() if card:
                outcome.forwarded += [(card, each)] if each.card != card else []
            case Returned() if len(waiting) < MOST_WAITING:
                outcome.invoice = IndexedInvoice("", (*waiting, each._replace(card="")))
                outcome.began += 1
            case Returned():
                outcome.refused += 1
    return outcome
