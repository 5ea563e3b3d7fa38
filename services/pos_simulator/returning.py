"""Returns and exchanges among the invoices of a simulated day."""

import random
from collections.abc import Sequence
from decimal import Decimal

from services.domain.invoice import LineItem, PosInvoice
from services.pos_simulator.invoicing import TAKEAWAY, Invoicing, taxes

RETURNABLE = 10_000
"""The most invoices in the sample from which an original is chosen. It limits the memory of a long run."""

DISCOUNT = "discount"
"""The ItemCode of all discounts."""

# The behaviour of tills and customers. The numbers are estimates.
_POSITIVE = 0.3
"""The share of the returns with positive amounts."""
_EARLY = 0.2
"""The share of the returns that come before their originals."""
_WITHOUT_CARD = 0.15
_OTHER_CARD = 0.15
_DISCOUNTED = 0.2
"""The share of the sales with a discount. It takes a quarter, or nearly everything."""


class Returning:
    """Gives the invoices of a day, and replaces some of them by returns and exchanges.

    A return happens in the shop of the invoice that it replaces. In most cases this is not the shop of the purchase.
    Some customers forget their card, and some give the card of somebody else. Some tills send returns with positive
    amounts. Some send the original after its return.

    Args:
        returns, exchanges: their shares of the invoices, 0 to 1, together at most 1.
    """

    def __init__(self, invoicing: Invoicing, seed: int, returns: float, exchanges: float) -> None:
        self._next_invoice = invoicing.next_invoice
        self._seed = seed
        self._returns, self._exchanges = returns, exchanges
        self._rng = random.Random(f"{seed}/returns")
        self._sold: list[PosInvoice] = []
        self._held: PosInvoice | None = None
        self._written = 0

    def next_invoice(self, part_of_trade: float) -> PosInvoice:
        """Like ``Invoicing.next_invoice``."""
        if held := self._held:
            self._held = None
            return held
        rng = self._rng
        visit = _discounted(self._next_invoice(part_of_trade), rng)
        choice = rng.random()
        if choice >= self._returns + self._exchanges:
            if len(self._sold) < RETURNABLE:
                self._sold.append(visit)
            else:
                self._sold[rng.randrange(RETURNABLE)] = visit
            return visit
        if not self._sold or rng.random() < _EARLY:
            original = self._held = visit
        else:
            original = rng.choice(self._sold)
        sold = (visit["InvoiceLineItems"] or []) if choice < self._exchanges else []
        sign = 1 if not sold and rng.random() < _POSITIVE else -1
        lines = [*_some_of(original["InvoiceLineItems"] or [], sign, rng), *sold]
        self._written += 1
        number = f"{self._seed}-R{self._written:07d}"
        card, customer_type = self._customer(original, visit)
        returned = _invoice(number, original, visit, lines)
        return {**returned, "CustomerCardNo": card, "CustomerType": customer_type}

    def _customer(self, original: PosInvoice, visit: PosInvoice) -> tuple[str | None, str | None]:
        """The card and the type of the customer who returns the items. ``visit`` has the card of another customer."""
        choice = self._rng.random()
        if choice < _WITHOUT_CARD:
            return None, None
        whose = visit if choice < _WITHOUT_CARD + _OTHER_CARD else original
        return whose["CustomerCardNo"], whose["CustomerType"]


def _some_of(items: Sequence[LineItem], sign: int, rng: random.Random) -> list[LineItem]:
    """At least one of the lines, each with at most its quantity, and the discount if they are worth more.

    Returns with positive amounts have no discounts, because their negative lines would make them exchanges.
    """
    lines: list[LineItem] = []
    goods = [item for item in items if item["ItemCode"] != DISCOUNT]
    for item in rng.sample(goods, rng.randint(1, len(goods))):
        quantity = rng.randint(1, item["ItemQty"] or 1)
        value = float(sign * quantity * Decimal(repr(item["ItemPrice"])))
        lines.append({**item, "ItemQty": sign * quantity, "TotalValue": value})
    worth = sum(line["TotalValue"] or 0 for line in lines)
    discount = next((item for item in items if item["ItemCode"] == DISCOUNT), None)
    if discount and worth < (value := discount["TotalValue"] or 0.0):
        lines.append({**discount, "ItemQty": -1, "TotalValue": -value})
    return lines


def _discounted(visit: PosInvoice, rng: random.Random) -> PosInvoice:
    """Some of the sales with a line for a discount."""
    cents = round((visit["TotalAmount"] or 0) * 100)
    if rng.random() >= _DISCOUNTED:
        return visit
    discount = rng.choice((cents // 4, cents - 1))
    line = LineItem(
        ItemCode=DISCOUNT,
        ItemDescription="Discount",
        ItemPrice=-discount / 100,
        ItemQty=1,
        TotalValue=-discount / 100,
    )
    lines, total = [*(visit["InvoiceLineItems"] or []), line], (cents - discount) / 100
    amounts: PosInvoice = {"TotalAmount": total, "TaxableAmount": total, **taxes(cents - discount)}
    return {**visit, **amounts, "NumberOfItems": len(lines), "InvoiceLineItems": lines}


def _invoice(number: str, original: PosInvoice, visit: PosInvoice, lines: list[LineItem]) -> PosInvoice:
    total = sum((Decimal(repr(line["TotalValue"])) for line in lines), Decimal(0))
    return {
        **visit,
        "InvoiceNumber": number,
        "OriginalInvoiceNumber": original["InvoiceNumber"],
        "DeliveryType": TAKEAWAY,
        "DeliveryAddress": None,
        "InvoiceLineItems": lines,
        "NumberOfItems": len(lines),
        "TotalAmount": float(total),
        "TaxableAmount": float(total),
        **taxes(int(total * 100)),
    }
