"""The changes of an account that time causes without an event."""

from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from services.domain.account.lots import Terms
from services.domain.account.model import Account
from services.domain.account.processor import advance, process
from services.domain.entries import Kind
from services.domain.events import Purchase, Receive, Reserve, SentLot, Void
from services.domain.programme import DAY, Period, Programme, Programmes, Tier

HOUR = DAY // 24


def buy(amount, number, time):
    return Purchase(time, number, Decimal(amount))


def apply_due_changes(programme, events, until):
    programmes = Programmes((programme,))
    account = process(None, events, programmes, "card").account
    return advance(account, until, programmes)


def instant(*local, zone="UTC"):
    return int(datetime(*local, tzinfo=ZoneInfo(zone)).timestamp()) * 1000


def happened(outcome):
    return [(entry.kind, entry.points, entry.time) for entry in outcome.entries]


def test_pending_points_are_released_in_time():
    """Pending points count but cannot be spent. The entry of the release has the exact time, without new events."""
    programme = Programme(pending=14 * DAY)
    programmes = Programmes((programme,))
    bought = process(None, [buy("100", "1", 5)], programmes, "card")
    assert (2_00, 0, 2_00) == (bought.entries[0].total, bought.entries[0].available, bought.entries[0].pending)
    assert 5 + 14 * DAY == bought.account.next_due()

    assert [] == advance(bought.account, 4 + 14 * DAY, programmes).entries
    released = advance(bought.account, 5 + 14 * DAY, programmes)
    assert [(Kind.RELEASED, 0, 5 + 14 * DAY)] == happened(released)
    assert (2_00, 0) == (released.entries[0].available, released.entries[0].pending)
    assert released.account.next_due() is None


def test_a_release_copies_no_account(monkeypatch):
    """An account with thousands of pending purchases is large, and each purchase has a release of its own."""
    programmes = Programmes((Programme(pending=DAY),))
    account = process(None, [buy("100", str(time), time) for time in range(20)], programmes, "card").account
    copied, copy = [], Account.copy
    monkeypatch.setattr(Account, "copy", lambda account: copied.append(account) or copy(account))

    assert 20 == len(advance(account, 2 * DAY, programmes).entries)
    assert [account] == copied  # the caller keeps its own


def test_points_expire_at_the_end_of_the_local_day():
    """Points are announced and then expire, once each, even if the customer never returns."""
    programme = Programme(valid_for=10 * DAY, expiry_notice=3 * DAY, time_zone="Asia/Kolkata")
    outcome = apply_due_changes(programme, [buy("100", "1", 5 * HOUR)], 30 * DAY)
    expiry = int(datetime(1970, 1, 12, tzinfo=ZoneInfo("Asia/Kolkata")).timestamp()) * 1000

    assert [(Kind.EXPIRES_SOON, 0, expiry - 3 * DAY), (Kind.EXPIRED, -2_00, expiry)] == happened(outcome)
    assert ("2.00", expiry) == (outcome.entries[0].reason, outcome.entries[0].expires_time)
    assert (0, {}) == (outcome.account.total, outcome.account.lots)


@pytest.mark.parametrize(
    ("points", "spent", "left"),
    [
        (
            1_50,
            {Terms(9 * DAY): 1_00, Terms(12 * DAY): 50},
            {Terms(): 1_00, Terms(12 * DAY): 50, Terms(13 * DAY): 1_00},
        ),
        (
            3_50,
            {Terms(9 * DAY): 1_00, Terms(12 * DAY): 1_00, Terms(13 * DAY): 1_00, Terms(): 50},
            {Terms(): 50},
        ),
    ],
)
def test_what_expires_soonest_is_spent_first(points, spent, left):
    """This order loses as few points as possible. Points that never expire are spent last."""
    lots = (SentLot(1_00, 0), SentLot(1_00, 9 * DAY))
    kept = Receive(append_time=0, command_id="in", counterparty="other", lots=lots)
    spend = Reserve(append_time=3 * DAY, command_id="spend", points=points)
    events = [kept, buy("50", "1", DAY), buy("50", "2", 2 * DAY), spend]
    account = process(None, events, Programmes((Programme(valid_for=10 * DAY),)), "card").account

    assert spent == account.reservations["spend"].lots
    assert left == account.lots


def test_points_of_one_day_are_one_lot():
    """They expire together, so an account has at most one lot for each day."""
    programme = Programme(valid_for=10 * DAY)
    events = [buy("50", str(hour), hour * HOUR) for hour in range(48)]

    assert [24_00, 24_00] == list(process(None, events, Programmes((programme,)), "card").account.lots.values())


@pytest.mark.parametrize("end", ["void", "lapse"])
def test_reserved_points_do_not_expire(end):
    """Points of a reservation that ends after their expiry come back and expire at once, with their own entry."""
    programme = Programme(valid_for=DAY, reserve_for=5 * DAY)
    programmes = Programmes((programme,))
    reserve = Reserve(append_time=HOUR, command_id="redemption", points=1_00)
    held = process(None, [buy("100", "1", 1), reserve], programmes, "card").account
    assert [(Kind.EXPIRED, -1_00, 2 * DAY)] == happened(advance(held, 4 * DAY, programmes))

    void = Void(append_time=4 * DAY, command_id="void", redemption_id="redemption")
    back = process(held, [void], programmes, "card") if end == "void" else advance(held, 6 * DAY, programmes)
    time = 4 * DAY if end == "void" else HOUR + 5 * DAY
    kind = Kind.VOIDED if end == "void" else Kind.LAPSED
    assert [(kind, 0, time), (Kind.EXPIRED, -1_00, time)] == happened(back)[1:]
    assert 0 == back.account.total


def test_a_late_timer_applies_changes_in_the_order_of_their_times():
    """Each entry has the time at which its change was due."""
    programme = Programme(pending=2 * DAY, valid_for=4 * DAY, expiry_notice=DAY, reserve_for=DAY)
    outcome = apply_due_changes(programme, [buy("100", "1", 1), buy("50", "2", 3 * DAY)], 100 * DAY)

    assert [
        (Kind.EXPIRES_SOON, 0, 4 * DAY),
        (Kind.EXPIRED, -2_00, 5 * DAY),
        (Kind.RELEASED, 0, 5 * DAY),
        (Kind.EXPIRES_SOON, 0, 7 * DAY),
        (Kind.EXPIRED, -1_00, 8 * DAY),
    ] == happened(outcome)
    assert [5 * DAY, 5 * DAY, 8 * DAY, 8 * DAY, 8 * DAY] == [entry.expires_time for entry in outcome.entries]


TIERED = Programme(
    tier_period=Period.MONTH, tiers=(Tier("base", 0), Tier("silver", 4_00, Decimal(2)), Tier("gold", 10_00))
)


def tiers(outcome):
    return [(entry.reason, entry.tier, entry.time // DAY) for entry in outcome.entries if entry.kind == Kind.TIER]


def test_tier_rises_at_once_and_counts_for_what_follows():
    """The purchase that reaches a tier still earns by the previous tier."""
    events = [buy("100", "1", DAY), buy("100", "2", 2 * DAY), buy("50", "3", 3 * DAY)]
    outcome = process(None, events, Programmes((TIERED,)), "card")

    assert [2_00, 2_00, 0, 2_00] == [entry.points for entry in outcome.entries]
    assert [("base", "silver", 2)] == tiers(outcome)
    assert ["base", "base", "silver", "silver"] == [entry.tier for entry in outcome.entries]


def test_tier_falls_no_further_than_the_last_period_earned():
    """The customer earns gold in January and silver in February. Gold lasts until the end of February, silver until the
    end of March.
    """
    events = [buy("500", "1", DAY), buy("200", "2", 35 * DAY)]
    outcome = process(None, events, Programmes((TIERED,)), "card")
    later = advance(outcome.account, 400 * DAY, Programmes((TIERED,)))

    assert [("base", "gold", 1)] == tiers(outcome)
    assert [("gold", "silver", 59), ("silver", "base", 90)] == tiers(later)
    assert later.account.next_due() is None


def test_programme_without_tiers_ends_them_with_the_period():
    """A new version of the programme does not change a tier before the current period ends."""
    programmes = Programmes.of([TIERED, Programme(1, effective_time=10 * DAY)])
    outcome = process(None, [buy("200", "1", DAY), buy("100", "2", 20 * DAY)], programmes, "card")
    assert ("silver", 2_00) == (outcome.entries[-1].tier, outcome.entries[-1].points)

    later = advance(outcome.account, 400 * DAY, programmes)
    assert [("silver", "", 31)] == tiers(later)
    assert {1} == {entry.programme_version for entry in later.entries}
    assert later.account.next_due() is None


def test_a_tier_survives_a_time_zone_further_west():
    """The period ends at midnight in the old zone. In the new zone this is the evening before."""
    tiers = (Tier("base", 0), Tier("gold", 5_00))
    utc = Programme(version=1, tier_period=Period.YEAR, tiers=tiers)
    new_york = replace(utc, version=2, effective_time=instant(2026, 6, 1), time_zone="America/New_York")
    events = [buy("30000", "1", instant(2026, 3, 1)), buy("1", "2", instant(2027, 1, 15))]

    later = process(None, events, Programmes((utc, new_york)), "card").account

    assert "gold" == later.tier
    assert instant(2028, 1, 1, zone="America/New_York") == later.period_end


@pytest.mark.parametrize(
    ("period", "end"),
    [(Period.MONTH, (2026, 4)), (Period.QUARTER, (2026, 4)), (Period.HALF_YEAR, (2026, 7)), (Period.YEAR, (2027, 1))],
)
def test_periods_are_those_of_the_calendar(period, end):
    """Months begin at local midnight, in winter and in summer time."""
    berlin = ZoneInfo("Europe/Berlin")
    programme = Programme(tier_period=period, tiers=(Tier("base", 0),), time_zone="Europe/Berlin")
    march = int(datetime(2026, 3, 31, 23, 30, tzinfo=berlin).timestamp()) * 1000
    account = process(None, [buy("1", "1", march)], Programmes((programme,)), "card").account

    assert int(datetime(*end, 1, tzinfo=berlin).timestamp()) * 1000 == account.next_due()
