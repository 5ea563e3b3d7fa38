"""Computes what a purchase earns: base points, the part of the tier, and the parts of campaigns.

    base            total amount x loyalty factor
    tax             with the basis taxable: (taxable amount - total amount) x loyalty factor
    excluded-items  minus the lines of excluded items x loyalty factor
    minimum-spend   minus all of it if less is left than the minimum spend; tier and campaigns then add nothing
    tier            what is left x (multiplier - 1)
    campaigns       (multiplier - 1) x (what is left + tier) of the invoice or of the lines, and the bonus
    cap-per-...     minus what is above the cap
    card-blocked    minus all of it if the card is blocked and the programme lets it earn nothing

The points are the sum of these parts, rounded once.

Several campaigns combine as ``Programme.combining`` says. Best: each line earns with the highest multiplier of the
campaigns for its item and for the invoice, the rest of the invoice earns with the highest multiplier of the campaigns
for the invoice, and the invoice gets the largest bonus. All: the parts of all campaigns add up.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from operator import attrgetter

from services.domain.entries import Refusal
from services.domain.events import Line, Purchase
from services.domain.formats import to_hundredths
from services.domain.local_time import local_time
from services.domain.programme import Campaign, Combining, Programme, TaxBasis

BASE = "base"
TAX = "tax"
EXCLUDED_ITEMS = "excluded-items"
MINIMUM_SPEND = "minimum-spend"
CAP_PER_INVOICE = "cap-per-invoice"
CAP_PER_DAY = "cap-per-day"
CARD_BLOCKED = str(Refusal.CARD_BLOCKED)
"""The names of the parts, except tiers and campaigns."""

MOST_EARNED = 10**13
"""The largest number of hundredths that one invoice earns under any programme. Totals must fit into the records."""

_Share = tuple[str, Decimal]
"""The name of a part, and its points before rounding."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the points, in hundredths. It is negative if a rule removes points.

    Its name is the name of a rule, a tier or a campaign.
    """

    name: str
    points: int


@dataclass(frozen=True, slots=True)
class Accrual:
    """The points that a purchase earns, in hundredths. They are the sum of the parts."""

    points: int
    parts: tuple[Part, ...] = ()


def accrual(
    purchase: Purchase, programme: Programme, tier: str = "", earned_today: int = 0, *, is_blocked: bool = False
) -> Accrual:
    """Computes what a purchase (not a return) earns for a customer of that tier.

    Args:
        earned_today: hundredths that other purchases of the same day have earned.
    """
    if not programme.is_eligible(purchase.customer_type):
        return Accrual(0)
    earned = earnings(purchase, programme, tier)
    if programme.earns_nothing(is_blocked=is_blocked):
        return _capped(earned, CARD_BLOCKED, 0)
    if programme.cap_per_day is None:
        return earned
    return _capped(earned, CAP_PER_DAY, max(0, programme.cap_per_day - earned_today))


def spend(total_amount: Decimal, taxable_amount: Decimal | None, programme: Programme) -> Decimal:
    """Returns the amount of an invoice on the tax basis of the programme. It includes the lines of excluded items."""
    return total_amount if programme.tax_basis is TaxBasis.TOTAL or taxable_amount is None else taxable_amount


def rounded_amount(amount: Decimal) -> Decimal:
    """Rounds an amount to millionths of a unit of money.

    Tills add doubles, so their sums have tiny errors: 0.1 + 0.2 is 0.30000000000000004. Such an error must not decide
    whether a purchase reaches the minimum spend, or whether a return leaves something of it.
    """
    return round(amount, 6)


def base_points(amount: Decimal, programme: Programme) -> int:
    """Returns the hundredths for that much money, without tier and campaigns."""
    return to_hundredths(rounded_amount(amount) * programme.loyalty_factor, programme.rounding)


def earnings(purchase: Purchase, programme: Programme, tier: str) -> Accrual:
    """Computes what a purchase earns for an eligible customer, without the cap per day and the rule of blocked cards.

    A purchase with the total 0 earns nothing, not even a bonus.
    """
    factor, total = programme.loyalty_factor, rounded_amount(purchase.total_amount)
    if total <= 0:
        return Accrual(0)
    basis = rounded_amount(spend(total, purchase.taxable_amount, programme))
    excluded_values = (line.value for line in purchase.lines if line.item_code in programme.excluded_items)
    excluded = rounded_amount(sum(excluded_values, Decimal(0)))
    amount = basis - excluded
    shares: list[_Share] = [(BASE, total * factor)]
    if amount != total:
        shares += [(TAX, (basis - total) * factor), (EXCLUDED_ITEMS, -excluded * factor)]
    if amount < programme.minimum_spend:
        shares.append((MINIMUM_SPEND, -amount * factor))
    elif amount > 0:
        multiplier = programme.tier_multiplier(tier)
        if multiplier != 1:
            shares.append((tier, amount * factor * (multiplier - 1)))
        if programme.campaigns:
            lines = [
                Line(line.item_code, rounded_amount(line.value))
                for line in purchase.lines
                if line.item_code not in programme.excluded_items
            ]
            rest = replace(purchase, total_amount=amount, lines=lines)
            shares += _campaign_shares(rest, programme, factor * multiplier)
    earned = _rounded(shares, programme)
    return earned if programme.cap_per_invoice is None else _capped(earned, CAP_PER_INVOICE, programme.cap_per_invoice)


def _capped(earned: Accrual, name: str, cap: int) -> Accrual:
    if earned.points <= cap:
        return earned
    return Accrual(cap, (*earned.parts, Part(name, cap - earned.points)))


def _rounded(shares: Iterable[_Share], programme: Programme) -> Accrual:
    """Rounds the running sum after each share. The difference to the sum before is the part of this share.

    So the parts add up to the points.
    """
    parts: dict[str, int] = {}
    exact, points = Decimal(0), 0
    for name, share in shares:
        exact += share
        before, points = points, min(MOST_EARNED, max(0, to_hundredths(exact, programme.rounding)))
        parts[name] = parts.get(name, 0) + points - before
    return Accrual(points, tuple(Part(name, share) for name, share in parts.items() if share or name == BASE))


def _campaign_shares(purchase: Purchase, programme: Programme, rate: Decimal) -> list[_Share]:
    """Returns the points of each campaign. ``rate`` is the points of one unit of money without campaigns."""
    time = _purchase_time(purchase, programme)
    active = [campaign for campaign in programme.campaigns if _applies(campaign, purchase.store_id, time)]
    invoice_campaigns = [campaign for campaign in active if not campaign.items]
    item_campaigns = [campaign for campaign in active if campaign.items]
    with_bonus = [
        campaign
        for campaign in (*invoice_campaigns, *item_campaigns)
        if campaign.bonus and (not campaign.items or _sells_item_of(campaign, purchase))
    ]
    if programme.combining is Combining.BEST:
        additions = _best_multipliers(purchase, invoice_campaigns, item_campaigns)
        with_bonus = [max(with_bonus, key=attrgetter("bonus"))] if with_bonus else []
    else:
        additions = _all_multipliers(purchase, invoice_campaigns, item_campaigns)
    return [
        *((name, amount * rate) for name, amount in additions),
        *((campaign.name, Decimal(campaign.bonus).scaleb(-2)) for campaign in with_bonus),
    ]


def _sells_item_of(campaign: Campaign, purchase: Purchase) -> bool:
    return any(line.value > 0 and line.item_code in campaign.items for line in purchase.lines)


_Money = tuple[str, Decimal]
"""The name of a campaign, and the money that its multiplier adds to the money of the purchase."""


def _best_multipliers(
    purchase: Purchase, invoice_campaigns: list[Campaign], item_campaigns: list[Campaign]
) -> Iterator[_Money]:
    """For ``Combining.BEST``: only the highest multiplier of each line counts."""
    multiplier = Decimal(1)
    if invoice_campaigns:
        best = max(invoice_campaigns, key=attrgetter("multiplier"))
        multiplier = best.multiplier
        yield best.name, purchase.total_amount * (multiplier - 1)
    for line in purchase.lines:
        if campaigns := [campaign for campaign in item_campaigns if line.item_code in campaign.items]:
            best = max(campaigns, key=attrgetter("multiplier"))
            # Without a campaign for the invoice, the item campaign counts even if its multiplier is below 1.
            if best.multiplier > multiplier or not invoice_campaigns:
                yield best.name, line.value * (best.multiplier - multiplier)


def _all_multipliers(
    purchase: Purchase, invoice_campaigns: list[Campaign], item_campaigns: list[Campaign]
) -> Iterator[_Money]:
    """For ``Combining.ALL``: all multipliers count."""
    for campaign in invoice_campaigns:
        yield campaign.name, purchase.total_amount * (campaign.multiplier - 1)
    for campaign in item_campaigns:
        values = (line.value for line in purchase.lines if line.item_code in campaign.items)
        yield campaign.name, sum(values, Decimal(0)) * (campaign.multiplier - 1)


def _purchase_time(purchase: Purchase, programme: Programme) -> datetime:
    """Returns the local time of the till, or of the broker if the calendar does not have the time of the till."""
    if purchase.created_time is not None:
        try:
            return local_time(purchase.created_time, programme.time_zone)
        except OverflowError:
            pass
    return local_time(purchase.append_time, programme.time_zone)


def _applies(campaign: Campaign, store_id: str, time: datetime) -> bool:
    day = time.date()
    return (
        (campaign.first_day is None or campaign.first_day <= day)
        and (campaign.last_day is None or day <= campaign.last_day)
        and (not campaign.weekdays or day.weekday() in campaign.weekdays)
        and (campaign.hours is None or campaign.hours[0] <= time.hour < campaign.hours[1])
        and (not campaign.stores or store_id in campaign.stores)
    )
