"""Tills that lose their connection, and send their invoices hours later."""

import random
from collections import deque
from collections.abc import Callable

from services.domain.invoice import PosInvoice

# The numbers are estimates.
_RECONNECTED = 1 / 100
"""The probability, for each message, that the waiting invoices begin to arrive."""
_EVENING = 0.9
"""The part of the day's trade after which no till loses its connection."""


class Offline:
    """Gives the invoices of a day. Some come late, with the time of the receipt.

    After an outage all waiting invoices come one after the other. In the evening no more tills lose their connection,
    and at the end of the day no invoice waits.

    Args:
        share: the share of the invoices that tills send late, 0 to 1.
        count: the number of messages of the day.
    """

    def __init__(self, next_invoice: Callable[[float], PosInvoice], seed: int, share: float, count: int) -> None:
        self._next_invoice = next_invoice
        self._rng = random.Random(f"{seed}/offline")
        self._share = share
        self._count = count
        self._held: deque[PosInvoice] = deque()
        self._sending = False

    def needs_rest(self, slot: int) -> bool:
        """Whether all remaining messages, this one included, are necessary for the waiting invoices."""
        return len(self._held) >= self._count - slot

    def next_invoice(self, slot: int) -> PosInvoice:
        """The invoice of the message with this number, from 0."""
        part_of_trade = (slot + 0.5) / self._count
        is_evening = part_of_trade >= _EVENING
        self._sending = bool(self._held) and (
            self._sending or is_evening or self.needs_rest(slot) or self._rng.random() < _RECONNECTED
        )
        if self._sending:
            return self._held.popleft()
        invoice = self._next_invoice(part_of_trade)
        while not is_evening and not self.needs_rest(slot + 1) and self._rng.random() < self._share:
            self._held.append(invoice)
            invoice = self._next_invoice(part_of_trade)
        return invoice
