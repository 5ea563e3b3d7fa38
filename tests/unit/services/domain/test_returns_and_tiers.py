"""What returns take from the points that count towards a tier, and from which period."""

from dataclasses import replace
from decimal import Decimal

import pytest

from services.domain.account.lots import Terms
from services.domain.account.model import Account, PastPurchase
from services.domain.account.processor import process
from services.domain.entries import Kind
from services.domain.programme import DAY, Period, Programme, Programmes, Tier, TimeBasis
from tests.unit.services.domain.purchases_and_returns import after, back, buy


def test_tier_that_returns_undo_ends_with_the_period():
    """A customer buys up to a tier and returns everything. The tier stays until the current period ends."""
    programme = Programme(tier_period=Period.MONTH, tiers=(Tier("gold", 2_00),))
    events = [buy("100"), back("100"), buy("1", "small", 3), buy("1", "next", 40 * DAY)]
    outcome = after(*events, programme=programme)
    tiers = [(entry.tier, entry.time) for entry in outcome.entries if entry.kind == Kind.TIER]

    assert [("gold", 1), ("", 31 * DAY)] == tiers


def test_return_counts_against_the_period_of_its_purchase():
    """Returns of January's purchases reduce the total of January and not that of February."""
    programme = Programme(tier_period=Period.MONTH, tiers=(Tier("gold", 2_00),))
    events = [buy("50"), buy("100", "february", 35 * DAY), back("50", time=36 * DAY), buy("1", "april", 95 * DAY)]
    tiers = [(entry.tier, entry.time // DAY) for entry in after(*events, programme=programme).entries]

    assert [("", 0), ("", 35), ("gold", 35), ("gold", 36), ("", 90), ("", 95)] == tiers
    at_midnight = after(buy("100", time=31 * DAY), back("50", time=32 * DAY), programme=programme)
    assert 1_00 == at_midnight.account.earned_in_period


def test_return_of_a_purchase_without_tiers_takes_nothing_from_the_tier():
    """The version before or after has none, so the purchase did not count."""
    before = Programme(version=1)
    tiers = replace(before, version=2, tier_period=Period.YEAR, tiers=(Tier("base", 0),))
    old, new = buy("100"), buy("100", "new", 11)
    for versions, returned in ((before, tiers), back("100", time=12)), ((tiers, before), back("100", "new", time=12)):
        numbered = [replace(each, effective_time=10 * place) for place, each in enumerate(versions)]
        outcome = process(None, [old, new, returned], Programmes(tuple(numbered)), "card")
        assert (2_00, 2_00) == (outcome.account.total, outcome.account.earned_in_period)


def test_return_of_a_purchase_from_before_the_first_one_of_a_longer_period():
    """January's purchase counted in the month of January, not in the year, which begins on the same day."""
    months = Programme(version=1, tier_period=Period.MONTH, tiers=(Tier("silver", 2_00),))
    years = replace(months, version=2, effective_time=40 * DAY, tier_period=Period.YEAR)
    programmes = Programmes((months, years))
    account = process(None, [buy("100"), buy("100", "march", 70 * DAY)], programmes, "card").account
    assert 2_00 == account.earned_in_period

    for original, left in ("bought", 2_00), ("march", 0):
        outcome = process(account, [back("100", original, time=71 * DAY)], programmes, "card")
        assert left == outcome.account.earned_in_period


def test_return_of_a_late_receipt_that_counted_towards_no_tier():
    """It came while the programme had no tiers. So its return takes nothing from the year that began later."""
    before = Programme(version=1, tier_period=Period.YEAR, tiers=(Tier("silver", 2_00),), time_basis=TimeBasis.TILL)
    without = replace(before, version=2, effective_time=10 * DAY, tier_period=None, tiers=())
    programmes = Programmes((before, without, replace(before, version=3, effective_time=20 * DAY)))
    late = buy("100", time=10 * DAY + 5, created_time=10 * DAY - 5)
    events = late, buy("100", "new", 21 * DAY), back("100", time=22 * DAY)

    assert 2_00 == process(None, events, programmes, "card").account.earned_in_period


@pytest.mark.parametrize("original", ["january", "february", "march"])
def test_the_first_purchase_of_a_period_can_be_read_last(original):
    """Returns of the purchases that counted in the period lower its points, in whatever order they were read."""
    programme = Programme(tier_period=Period.QUARTER, tiers=(Tier("silver", 2_00),))
    account = None
    for number, day in ("march", 70), ("january", 9), ("february", 40):
        account = after(buy("100", number, day * DAY), programme=programme, account=account).account

    returned = after(back("100", original, time=71 * DAY), programme=programme, account=account).account

    assert (6_00, 4_00) == (account.earned_in_period, returned.earned_in_period)


def test_a_purchase_of_an_earlier_period_does_not_begin_the_next_one():
    """The query reads January's last purchase after the first one of February. Its points count in February.

    This does not make February begin earlier. Otherwise returns of other purchases of January would lower its points.
    """
    programme = Programme(tier_period=Period.MONTH, tiers=(Tier("silver", 2_00),))
    account = after(buy("100"), buy("100", "february", 32 * DAY), programme=programme).account
    account = after(buy("100", "late", 0), programme=programme, account=account).account

    returned = after(back("100", time=33 * DAY), programme=programme, account=account).account

    assert 4_00 == account.earned_in_period == returned.earned_in_period


def test_return_of_a_purchase_that_counted_in_a_later_period():
    """The query reads a purchase of January in February. Its return takes the points from February, but not from March.

    Otherwise the customer would keep a tier without a purchase.
    """
    programme = Programme(tier_period=Period.MONTH, tiers=(Tier("silver", 2_00),))
    events = buy("10", "february", 32 * DAY), buy("100", "late", 1)
    account = process(None, events[:1], Programmes((programme,)), "card").account
    account = after(events[1], programme=programme, account=account).account
    in_february = after(back("100", "late", time=33 * DAY), programme=programme, account=account).account
    march = after(buy("100", "march", 60 * DAY), programme=programme, account=account).account
    in_march = after(back("100", "late", time=61 * DAY), programme=programme, account=march).account

    assert [2_20, 20, 2_00, 2_00] == [each.earned_in_period for each in (account, in_february, march, in_march)]


def test_return_of_points_that_counted_in_another_period():
    """A merged account brings the purchase, and not the points of its period, which are never below 0."""
    purchases = {"bought": PastPurchase(1, Decimal(100), 2_00, 0)}
    account = Account(1, lots={Terms(): 2_00}, purchases=purchases, period_end=365 * DAY, earned_in_period=50)
    programme = Programme(tier_period=Period.YEAR, tiers=(Tier("base", 0),))

    assert 0 == after(back("100"), programme=programme, account=account).account.earned_in_period
