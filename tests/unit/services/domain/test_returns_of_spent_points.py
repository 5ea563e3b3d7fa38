"""What returns take back of points that are spent, reserved or expired."""

from dataclasses import replace

import pytest

from services.domain.account.lots import Terms
from services.domain.account.processor import advance, process
from services.domain.entries import Kind
from services.domain.events import Adjust, Capture, Reserve, Void
from services.domain.programme import DAY, Period, Programme, Programmes, SpentReturns, Tier
from tests.unit.services.domain.purchases_and_returns import after, back, buy, taken


@pytest.mark.parametrize(
    ("policy", "points", "available"),
    [(SpentReturns.WITHIN_BALANCE, 50, 0), (SpentReturns.NEGATIVE_ALLOWED, 2_00, -1_50)],
)
def test_return_of_points_that_are_spent(policy, points, available):
    """Within balance takes the points that are left. Otherwise the rest is a debt, which later purchases repay."""
    spent = Adjust(append_time=2, command_id="spent", points=-1_50)
    programme = Programme(spent_returns=policy)
    outcome = after(buy("100"), spent, back("100", time=3), programme=programme)

    assert [points] == taken(outcome)
    assert available == outcome.account.available == outcome.entries[-1].available
    later = after(buy("200", "next", 4), programme=programme, account=outcome.account)
    assert available + 4_00 == later.account.available == later.account.total


@pytest.mark.parametrize(
    ("policies", "available"),
    [
        ((SpentReturns.WITHIN_BALANCE, SpentReturns.NEGATIVE_ALLOWED), 0),
        ((SpentReturns.NEGATIVE_ALLOWED, SpentReturns.WITHIN_BALANCE), -1_50),
    ],
)
def test_the_version_of_the_purchase_decides_about_points_that_are_spent(policies, available):
    """A later version changes nothing, neither for a return after it nor for a capture of reserved points after it."""
    first, second = policies
    programmes = Programmes.of(
        [Programme(spent_returns=first), Programme(version=2, effective_time=5, spent_returns=second)]
    )
    reserve = Reserve(append_time=2, command_id="redemption", points=1_50)
    return_before, return_after = back("100", time=3), back("100", time=6)
    capture_before = Capture(append_time=4, command_id="end", redemption_id="redemption")
    capture_after = replace(capture_before, append_time=7)

    for events in ((capture_before, return_after), (return_before, capture_after)):
        account = process(None, (buy("100"), reserve, *events), programmes, "card").account
        assert available == account.available == account.total


@pytest.mark.parametrize(("spent", "points"), [(0, 0), (50, 50), (2_50, 2_00)])
@pytest.mark.parametrize("policy", SpentReturns)
def test_return_takes_no_expired_points(policy, spent, points):
    """Two purchases of one day expire together. Points that were spent before are those of the first purchase."""
    programme = Programme(valid_for=30 * DAY, spent_returns=policy)
    redeemed = [Adjust(append_time=3, command_id="spent", points=-spent)] if spent else []
    later = buy("300", "later", 40 * DAY)

    outcome = after(
        buy("100"), buy("100", "second", 2), *redeemed, later, back("100", time=50 * DAY), programme=programme
    )

    assert [points] == taken(outcome)
    assert 6_00 - points == outcome.account.total


def test_a_return_takes_no_points_that_expired_after_their_redemption_lapsed():
    """They expire at once. The points of the second purchase have expired before, and those of the first one now."""
    reserved = Reserve(append_time=31 * DAY - 1, command_id="redemption", points=2_00)
    given = Adjust(append_time=40 * DAY, command_id="given", points=5_00)
    events = buy("100"), buy("100", "second", 2), reserved, given, back("100", time=50 * DAY)
    outcome = after(*events, programme=Programme(valid_for=30 * DAY))

    assert ([0], 5_00) == (taken(outcome), outcome.account.total)


def test_return_of_a_part_of_expired_points():
    """The first half takes what the purchase still has, with and without its number. The tier loses all points."""
    programme = Programme(valid_for=30 * DAY, tier_period=Period.YEAR, tiers=(Tier("gold", 100_00),))
    spent = Adjust(append_time=2, command_id="spent", points=-50)
    given = Adjust(append_time=40 * DAY, command_id="given", points=5_00)
    first = back("50", number="first", time=50 * DAY)

    for half in (first, replace(first, original_invoice_number=None)):
        outcome = after(buy("100"), spent, given, half, programme=programme)
        assert ([50], 1_00) == (taken(outcome), outcome.account.earned_in_period)
        rest = after(back("50", time=51 * DAY), programme=programme, account=outcome.account)
        assert ([0], 0, 4_50) == (taken(rest), rest.account.earned_in_period, rest.account.total)


@pytest.mark.parametrize("end", [Void, Capture])
def test_return_takes_back_reserved_points_unless_they_are_spent(end):
    """Otherwise a customer could reserve the points, return the goods and void the redemption."""
    reserved = Reserve(append_time=2, command_id="redemption", points=1_50)
    outcome = after(buy("100"), reserved, back("100", time=3))
    entry = outcome.entries[-1]
    assert (-2_00, 0, -1_50, 1_50) == (entry.points, entry.total, entry.available, entry.reserved)

    ended = after(end(append_time=4, command_id="end", redemption_id="redemption"), account=outcome.account)

    expected = {
        Void: [(Kind.VOIDED, 0, 0, "")],
        Capture: [(Kind.RETURNED, 1_50, 1_50, "points-spent"), (Kind.REDEEMED, -1_50, 0, "")],
    }
    assert expected[end] == [(each.kind, each.points, each.total, each.reason) for each in ended.entries]
    assert (0, 0, 0) == (ended.account.debt, ended.account.available, ended.account.reserved)
    assert 0 == ended.decisions[0].total


def test_a_capture_cancels_only_the_debt_of_returns():
    """An adjustment took 1.50 of the reserved points, and a return took 0.50. The customer owes the 1.50."""
    reserved = Reserve(append_time=2, command_id="redemption", points=2_00)
    adjusted = Adjust(append_time=3, command_id="correction", points=-1_50, allow_negative=True)
    captured = Capture(append_time=5, command_id="end", redemption_id="redemption")

    outcome = after(buy("100"), reserved, adjusted, back("100", time=4), captured)

    assert [50, -50] == [-each.points for each in outcome.entries if each.kind is Kind.RETURNED]
    assert (-1_50, 1_50) == (outcome.account.total, outcome.account.debt)
    later = after(buy("100", "next", 6), account=outcome.account)
    assert (50, 0, 0) == (later.account.total, later.account.debt, later.account.reserved_debt)


def test_returns_together_take_no_more_than_is_reserved():
    """Within the balance, a debt that is there already counts. It can even be larger than what is reserved."""
    spent = Adjust(append_time=2, command_id="spent", points=-50)
    reserved = Reserve(append_time=3, command_id="redemption", points=1_50)
    returns = back("50", time=4), back("50", number="rest", time=5)
    assert [1_00, 50] == taken(after(buy("100"), spent, reserved, *returns))

    owing = replace(spent, points=-5_00, allow_negative=True)
    outcome = after(buy("100"), owing, back("100", time=3))
    assert ([0], -3_00) == (taken(outcome), outcome.account.total)


def test_capture_cancels_only_what_no_other_reservation_can_pay():
    """Two redemptions of 1.00 each, and a return of 0.50: the second redemption still pays it."""
    reserves = [Reserve(append_time=2, command_id=name, points=1_00) for name in ("first", "second")]
    capture = Capture(append_time=4, command_id="end", redemption_id="first")
    outcome = after(buy("100"), *reserves, back("25", time=3), capture)

    assert [Kind.REDEEMED] == [each.kind for each in outcome.entries if each.event_id == "end"]
    assert (50, -50, 1_00) == (outcome.account.total, outcome.account.available, outcome.account.reserved)


def test_debt_is_no_reason_to_take_reserved_points():
    """Reserved points stay reserved. A void repays the debt with them, a capture does not."""
    programme = Programme(spent_returns=SpentReturns.NEGATIVE_ALLOWED)
    reserved = Reserve(append_time=2, command_id="redemption", points=2_00)
    outcome = after(buy("100"), reserved, back("100", time=3), programme=programme)
    entry = outcome.entries[-1]
    assert (0, -2_00, 2_00) == (entry.total, entry.available, entry.reserved)

    capture, void = (each(append_time=4, command_id="end", redemption_id="redemption") for each in (Capture, Void))
    ends = (capture, (2_00, -2_00, -2_00)), (void, (0, 0, 0)), (buy("1", "after it lapsed", DAY), (0, 2, 2))
    for end, expected in ends:
        account = after(end, programme=programme, account=outcome.account).account
        assert expected == (account.debt, account.available, account.total)
    lapsed = advance(outcome.account, DAY, Programmes((programme,))).account
    assert (0, {}) == (lapsed.debt, lapsed.lots)


def test_return_takes_from_other_lots_if_its_own_lot_is_spent():
    """The return then takes the points that expire soonest, also pending ones."""
    programme = Programme(pending=5 * DAY, valid_for=30 * DAY)
    spent = Adjust(append_time=6 * DAY, command_id="spent", points=-1_50)
    events = [buy("100", "first", DAY), spent, buy("100", "second", 6 * DAY), buy("50", "third", 7 * DAY)]
    lots = after(*events, back("100", "first", time=8 * DAY), programme=programme).account.lots

    assert {Terms(37 * DAY, 11 * DAY): 50, Terms(38 * DAY, 12 * DAY): 1_00} == lots
