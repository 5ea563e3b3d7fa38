"""Computes an account with tiers, caps and commands, event by event, without the domain.

The rules are those of docs/reference/programme.md, with limits: the period of tiers does not end, points are never
pending and do not expire, and reservations do not lapse.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal

from services.domain.events import Adjust, Capture, Event, Purchase, Reserve, Void
from services.domain.programme import DAY

Items = defaultdict[str, Decimal]
"""Item code to value."""


@dataclass(frozen=True)
class Rules:
    """Points are in hundredths. A customer reaches the tier with ``gold_from`` points. The tier doubles the points."""

    gold_from: int
    cap_per_invoice: int
    cap_per_day: int

    def points(self, items: Items, *, is_gold: bool) -> int:
        exact = sum(items.values(), Decimal(0)) * 2 * (1 + is_gold)
        return min(self.cap_per_invoice, int(exact.quantize(Decimal(1), ROUND_HALF_UP)))


@dataclass
class Bought:
    """A purchase: the items and points that are left of it."""

    day: int
    items: Items
    points: int
    is_gold: bool


@dataclass
class SequentialOracle:
    """The account after the events so far, in hundredths."""

    rules: Rules
    available: int = 0
    reserved: dict[str, int] = field(default_factory=dict)
    earned: int = 0
    is_gold: bool = False
    bought: dict[str, Bought] = field(default_factory=dict)
    waiting: defaultdict[str, list[Items]] = field(default_factory=lambda: defaultdict(list))

    @property
    def total(self) -> int:
        return self.available + sum(self.reserved.values())

    def read(self, event: Event) -> None:
        match event:
            case Purchase():
                self._invoice(event)
            case Adjust() if event.points > 0 or self.available + event.points >= 0:
                self.available += event.points
            case Reserve() if event.points <= self.available:
                self.available -= event.points
                self.reserved[event.command_id] = event.points
            case Capture():
                self.reserved.pop(event.redemption_id, 0)
                # Returns can have taken back reserved points. These points are spent now.
                self.available = max(self.available, -sum(self.reserved.values()))
            case Void():
                self.available += self.reserved.pop(event.redemption_id, 0)

    def _invoice(self, event: Purchase) -> None:
        number, original = event.invoice_number, event.original_invoice_number
        sold, back = Items(Decimal), Items(Decimal)
        is_mixed = len({line.value > 0 for line in event.lines}) > 1
        for line in event.lines:
            is_sold = original is None or (is_mixed and line.value > 0)
            (sold if is_sold else back)[line.item_code] += abs(line.value)
        if sold:
            self._sell(number, event.append_time // DAY, sold)
        if back and original != number:
            if original in self.bought:
                self._take_back(str(original), back)
            else:
                self.waiting[str(original)].append(back)
        if number in self.bought:
            for returned in self.waiting.pop(number, []):
                self._take_back(number, returned)

    def _sell(self, number: str, day: int, items: Items) -> None:
        today = sum(each.points for each in self.bought.values() if each.day == day)
        points = min(self.rules.points(items, is_gold=self.is_gold), max(0, self.rules.cap_per_day - today))
        self.bought[number] = Bought(day, items, points, self.is_gold)
        self.available += points
        self.earned += points
        self.is_gold |= self.earned >= self.rules.gold_from

    def _take_back(self, original: str, items: Items) -> None:
        bought = self.bought[original]
        for item, value in items.items():
            bought.items[item] = max(Decimal(0), bought.items[item] - value)
        left = min(bought.points, self.rules.points(bought.items, is_gold=bought.is_gold))
        lost, bought.points = bought.points - left, left
        self.earned = max(0, self.earned - lost)
        self.available -= min(lost, self.total)
