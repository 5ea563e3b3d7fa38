"""A customer's loyalty account: state and invoices in, new state and notifications out. No clock, no I/O."""

from collections.abc import Iterable
from dataclasses import dataclass
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
    """The rules of the loyalty programme."""

    loyalty_factor: Decimal = LOYALTY_FACTOR


@dataclass(frozen=True, slots=True)
class Account:
    """The running total of one customer.

    Attributes:
        total: in hundredths of a point.
        sequence: how often the total has been set; readers ignore what they have seen.
        updated_time: append time of the latest invoice counted, milliseconds since the epoch.
    """

    total: int = 0
    sequence: int = 0
    updated_time: int = 0

    def count(self, purchases: Iterable[Purchase], programme: Programme) -> tuple["Account", list[Notification]]:
        """Count the invoices in the order of the broker's append time, however they arrive.

        Which invoices are repeats is decided before: their number may have come under another card.
        """
        total, sequence, updated_time = self.total, self.sequence, self.updated_time
        notifications = []
        for purchase in sorted(purchases):
            earned = earned_points(purchase.total_amount, programme.loyalty_factor)
            total, sequence = total + earned, sequence + 1
            updated_time = max(updated_time, purchase.append_time)
            notifications.append(Notification(purchase, earned, total, sequence))
        return Account(total, sequence, updated_time), notifications
