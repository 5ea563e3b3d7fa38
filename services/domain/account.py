"""A customer's loyalty account: state and invoices in, new state and notifications out. No clock, no I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal

from services.domain.points import LOYALTY_FACTOR, earned_points


@dataclass(frozen=True, slots=True, order=True)
class Purchase:
    """What an account needs to know of a PRIME invoice. The order of the fields is the order of counting.

    Attributes:
        append_time: when the broker appended the invoice, milliseconds since the epoch.
    """

    append_time: int
    invoice_number: str
    total_amount: float


@dataclass(frozen=True, slots=True)
class Notification:
    """What one invoice did to the points, in hundredths."""

    purchase: Purchase
    earned: int
    total: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Programme:
    """The rules of the loyalty programme.

    Attributes:
        repeat_horizon: how long after an invoice a repeat of its number is still recognised.
    """

    loyalty_factor: Decimal = LOYALTY_FACTOR
    repeat_horizon: timedelta = timedelta(days=9)


@dataclass(frozen=True, slots=True)
class Account:
    """The running total of one customer.

    Attributes:
        total: in hundredths of a point.
        sequence: how often the total has been set; readers ignore what they have seen.
        updated_time: append time of the latest invoice counted, milliseconds since the epoch.
        recent_invoices: invoice number to append time, for as long as a repeat could follow.
    """

    total: int = 0
    sequence: int = 0
    updated_time: int = 0
    recent_invoices: Mapping[str, int] = field(default_factory=dict)

    def count(self, purchases: Iterable[Purchase], programme: Programme) -> tuple["Account", list[Notification]]:
        """Count each invoice once, in the order of the broker's append time, however they arrive."""
        total, sequence, updated_time = self.total, self.sequence, self.updated_time
        recent = dict(self.recent_invoices)
        notifications = []
        for purchase in sorted(purchases):
            if purchase.invoice_number in recent:
                continue
            earned = earned_points(purchase.total_amount, programme.loyalty_factor)
            total, sequence = total + earned, sequence + 1
            updated_time = max(updated_time, purchase.append_time)
            recent[purchase.invoice_number] = purchase.append_time
            notifications.append(Notification(purchase, earned, total, sequence))
        forget_before = updated_time - int(programme.repeat_horizon.total_seconds() * 1000)
        recent = {number: time for number, time in recent.items() if time >= forget_before}
        return Account(total, sequence, updated_time, recent), notifications
