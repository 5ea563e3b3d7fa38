"""Valid invoices of one simulated day."""

import random
from bisect import bisect_right
from datetime import date, datetime, time, timedelta, timezone
from itertools import accumulate

from services.domain.invoice import HOME_DELIVERY, PRIME, LineItem, PosInvoice
from services.pos_simulator.catalogue import departments
from services.pos_simulator.chain import Chain, Shopper

TIME_ZONE = timezone(timedelta(hours=5, minutes=30), "IST")
"""India has one time zone and no summer time."""

OPENING_HOUR = 9
CUSTOMERS_PER_HOUR = (2, 4, 6, 8, 7, 5, 5, 6, 9, 12, 11, 7, 3)
"""The relative number of customers in each hour, from 09:00 to 22:00."""

_MS_PER_HOUR = 3_600_000
_CLOSED_BY = tuple(accumulate(CUSTOMERS_PER_HOUR))

NONPRIME = "NONPRIME"
TAKEAWAY = "TAKEAWAY"

# The behaviour of customers. The numbers are estimates.
_ANOTHER_LINE = 0.6
_SAME_DEPARTMENT = 0.7
_MOST_LINES = 8
_PAID_BY_CARD = 0.417  # as in the recorded invoices


def opening(day: date) -> int:
    """The opening time of a day, in milliseconds since the epoch."""
    return int(datetime.combine(day, time(OPENING_HOUR), TIME_ZONE).timestamp()) * 1000


def since_opening(part_of_trade: float) -> int:
    """Milliseconds after the opening at which this part (0 to below 1) of the day's trade is done."""
    done = part_of_trade * _CLOSED_BY[-1]
    hour = bisect_right(_CLOSED_BY, done)
    before = _CLOSED_BY[hour - 1] if hour else 0
    return int((hour + (done - before) / CUSTOMERS_PER_HOUR[hour]) * _MS_PER_HOUR)


def taxes(cents: int) -> PosInvoice:
    """The taxes of an amount in cents: 2.5 % twice and 0.125 %, rounded half up to cents."""
    half_gst, cess = ((cents * rate + 50_000) // 100_000 / 100 for rate in (2_500, 125))
    return {"CGST": half_gst, "SGST": half_gst, "CESS": cess}


class Invoicing:
    """Writes the invoices of one day. The same arguments give the same invoices.

    Args:
        seed: is part of each invoice number. So two seeds have no common number.
        prime, home_delivery: shares of the invoices, 0 to 1.
        customers: the number of customers, at least 2.
    """

    def __init__(self, seed: int, chain: Chain, customers: int, prime: float, home_delivery: float, day: date) -> None:
        self._seed = seed
        self._chain = chain
        self._prime, self._home_delivery = prime, home_delivery
        self._prime_customers = min(max(round(customers * prime), 1), customers - 1)
        self._other_customers = customers - self._prime_customers
        self._opening = opening(day)
        self._departments = departments()
        self._chance = random.Random(f"{seed}/invoices").random
        self._written = 0

    def next_invoice(self, part_of_trade: float) -> PosInvoice:
        """The next invoice. Its time is the time at which this part (0 to below 1) of the day's trade is done."""
        chance = self._chance
        prime = chance() < self._prime
        shopper = self._shopper(prime=prime)
        store = shopper.stores[int(chance() * len(shopper.stores))]
        items, cents = self._basket()
        self._written += 1
        delivered = chance() < self._home_delivery
        total = cents / 100
        return {
            "InvoiceNumber": f"{self._seed}-{self._written:07d}",
            "CreatedTime": self._opening + since_opening(part_of_trade),
            "CustomerCardNo": shopper.card,
            "TotalAmount": total,
            "NumberOfItems": len(items),
            "PaymentMethod": "CARD" if chance() < _PAID_BY_CARD else "CASH",
            "TaxableAmount": total,
            **taxes(cents),
            "StoreID": store.store_id,
            "PosID": store.tills[int(chance() * len(store.tills))],
            "CashierID": store.cashiers[int(chance() * len(store.cashiers))],
            "CustomerType": PRIME if prime else NONPRIME,
            "DeliveryType": HOME_DELIVERY if delivered else TAKEAWAY,
            "DeliveryAddress": shopper.address if delivered else None,
            "InvoiceLineItems": items,
            "OriginalInvoiceNumber": None,
        }

    def _shopper(self, *, prime: bool) -> Shopper:
        # The square of a uniform number prefers low numbers. Customer n comes with a probability like 1/sqrt(n).
        favoured = self._chance() ** 2
        if prime:
            return self._chain.shopper(int(self._prime_customers * favoured))
        return self._chain.shopper(self._prime_customers + int(self._other_customers * favoured))

    def _basket(self) -> tuple[list[LineItem], int]:
        """The lines of a basket and their sum in cents. No article appears twice."""
        chance = self._chance
        # One household size for the whole basket: a customer with six chairs buys twelve plates.
        household = chance()
        items: list[LineItem] = []
        codes: set[str] = set()
        cents = 0
        department = self._departments[int(chance() * len(self._departments))]
        while True:
            article = department[int(chance() ** 2 * len(department))]
            if article.code not in codes:
                codes.add(article.code)
                line = article.lines[int(household * len(article.lines))]
                items.append(line.record)
                cents += line.cents
            if len(items) == _MOST_LINES or chance() >= _ANOTHER_LINE:
                return items, cents
            if chance() >= _SAME_DEPARTMENT:
                department = self._departments[int(chance() * len(self._departments))]
