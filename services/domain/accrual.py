"""What a purchase earns: base points, the tier's share, campaigns; rounded once.

    base       total amount x loyalty factor
    tier       base x (multiplier - 1)
    campaigns  (multiplier - 1) x (base + tier) of what they concern, and their bonus

Several campaigns combine as ``Combining`` says. Best: each line earns by the highest multiplier of those that fit it,
what is no line of an item campaign by the highest of the others, and the invoice gets the largest bonus.
All: everything above adds up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from services.domain.events import Line, Purchase
from services.domain.formats import to_hundredths
from services.domain.local_time import local
from services.domain.programme import Campaign, Combining, Programme
from services.domain.tiers import multiplier

BASE = "base"
MOST = 10**13
"""Hundredths that one invoice can earn, whatever it claims and the programme promises: totals must fit the records."""

_ONE = Decimal(1)


@dataclass(frozen=True, slots=True)
class Part:
    """A share of what a purchase earns, in hundredths: of ``base``, of a tier or of a campaign by its name."""

    name: str
    points: int


@dataclass(frozen=True, slots=True)
class Accrual:
    """What a purchase earns, in hundredths; the parts add up to it."""

    points: int
    parts: tuple[Part, ...] = ()


def eligible(purchase: Purchase, programme: Programme) -> bool:
    """Whether the customer's type takes part. Case does not matter, as in the Java originals."""
    return purchase.customer_type.upper() in programme.customer_types


def accrual(purchase: Purchase, programme: Programme, tier: str = "") -> Accrual:
    """What a purchase (no return) of a customer of that tier earns, and why."""
    return earnings(purchase, programme, tier) if eligible(purchase, programme) else Accrual(0)


def base_points(amount: Decimal, programme: Programme) -> int:
    """Hundredths for so much money without tier and campaigns."""
    return to_hundredths(amount * programme.loyalty_factor, programme.rounding)


def earnings(purchase: Purchase, programme: Programme, tier: str) -> Accrual:
    """As ``accrual``, of a customer who takes part. What costs nothing earns nothing, whatever its bonus."""
    if purchase.total_amount <= 0:
        return Accrual(0)
    if not programme.campaigns and not programme.tiers:
        points = min(MOST, base_points(purchase.total_amount, programme))
        return Accrual(points, (Part(BASE, points),))
    base = purchase.total_amount * programme.loyalty_factor
    worth = multiplier(tier, programme)
    shares = [(BASE, base)]
    if worth != 1:
        shares.append((tier, base * (worth - 1)))
    if programme.campaigns:
        shares += _campaigns(purchase, programme, programme.loyalty_factor * worth)
    return _rounded(shares, programme)


def _rounded(shares: Iterable[tuple[str, Decimal]], programme: Programme) -> Accrual:
    """Rounds the sum once; each part is what it adds to the rounded sum of those before it."""
    parts: dict[str, int] = {}
    exact, points = Decimal(0), 0
    for name, share in shares:
        exact += share
        before, points = points, min(MOST, max(0, to_hundredths(exact, programme.rounding)))
        parts[name] = parts.get(name, 0) + points - before
    return Accrual(points, tuple(Part(name, share) for name, share in parts.items() if share or name == BASE))


def _campaigns(purchase: Purchase, programme: Programme, rate: Decimal) -> list[tuple[str, Decimal]]:
    """What each campaign gives, in points; ``rate``: points for a unit of money without campaigns."""
    moment = _moment(purchase, programme)
    fitting = [campaign for campaign in programme.campaigns if _fits(campaign, purchase.store_id, moment)]
    of_invoice = [campaign for campaign in fitting if not campaign.items]
    of_items = [campaign for campaign in fitting if campaign.items]
    concerned = [
        (line, [campaign for campaign in of_items if line.item_code in campaign.items]) for line in purchase.lines
    ]
    bonuses = of_invoice + [
        campaign
        for campaign in of_items
        if any(line.value > 0 and campaign in campaigns for line, campaigns in concerned)
    ]
    shares = _best if programme.combining is Combining.BEST else _all
    return [
        *((name, money * rate) for name, money in shares(purchase.total_amount, of_invoice, concerned)),
        *((campaign.name, Decimal(campaign.bonus).scaleb(-2)) for campaign in _bonuses(bonuses, programme.combining)),
    ]


_Concerned = list[tuple[Line, list[Campaign]]]


def _best(amount: Decimal, of_invoice: list[Campaign], concerned: _Concerned) -> Iterable[tuple[str, Decimal]]:
    usual = _ONE
    if of_invoice:
        best = max(of_invoice, key=_multiplier)
        usual = best.multiplier
        yield best.name, amount * (usual - 1)
    for line, campaigns in concerned:
        if campaigns:
            best = max(campaigns, key=_multiplier)
            if best.multiplier > usual or not of_invoice:
                yield best.name, line.value * (best.multiplier - usual)


def _all(amount: Decimal, of_invoice: list[Campaign], concerned: _Concerned) -> Iterable[tuple[str, Decimal]]:
    for campaign in of_invoice:
        yield campaign.name, amount * (campaign.multiplier - 1)
    for line, campaigns in concerned:
        for campaign in campaigns:
            yield campaign.name, line.value * (campaign.multiplier - 1)


def _bonuses(campaigns: list[Campaign], combining: Combining) -> list[Campaign]:
    given = [campaign for campaign in campaigns if campaign.bonus]
    return [max(given, key=lambda campaign: campaign.bonus)] if given and combining is Combining.BEST else given


def _multiplier(campaign: Campaign) -> Decimal:
    return campaign.multiplier


def _moment(purchase: Purchase, programme: Programme) -> datetime:
    """By the till's clock, unless that shows no year of the calendar."""
    if purchase.created_time is not None:
        try:
            return local(purchase.created_time, programme.time_zone)
        except OverflowError:
            pass
    return local(purchase.append_time, programme.time_zone)


def _fits(campaign: Campaign, store_id: str, moment: datetime) -> bool:
    day = moment.date()
    return (
        (campaign.first_day is None or campaign.first_day <= day)
        and (campaign.last_day is None or day <= campaign.last_day)
        and (not campaign.weekdays or day.weekday() in campaign.weekdays)
        and (campaign.hours is None or campaign.hours[0] <= moment.hour < campaign.hours[1])
        and (not campaign.stores or store_id in campaign.stores)
    )
