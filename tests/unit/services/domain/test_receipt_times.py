"""Receipts of offline tills. The programme says which time decides, and how old a receipt may be."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.codecs.state import decode_account, encode_account
from services.domain import local_time
from services.domain.account import purchases
from services.domain.account.processor import advance, process
from services.domain.entries import Kind
from services.domain.events import Block, Purchase
from services.domain.programme import DAY, BlockedCards, Campaign, Period, Programme, Programmes, Tier, TimeBasis
from services.domain.recomputation import recompute
from tests.support.examples import examples

HOUR = DAY // 24
MONDAY = 20_000 * DAY + 12 * HOUR
"""Noon in UTC."""

TILL = Programme(time_basis=TimeBasis.TILL, largest_backdating=2 * DAY, pending=DAY, valid_for=5 * DAY)
BROKER = replace(TILL, time_basis=TimeBasis.BROKER)


def sold(written: int | None, arrived: int = MONDAY, amount: str = "100", number: str = "sold") -> Purchase:
    return Purchase(arrived, number, Decimal(amount), created_time=written)


def played(programme, *events):
    """The account after these events, through the state store, and its entries."""
    programmes = programme if isinstance(programme, Programmes) else Programmes((programme,))
    outcome = process(None, events, programmes, "card")
    assert outcome.entries == recompute("card", events, outcome.entries, programmes).settled.entries
    return decode_account(encode_account(outcome.account)), outcome.entries


def lots_of(programme, *events):
    return played(programme, *events)[0].lots


def test_pending_points_and_expiry_follow_the_receipt():
    """A receipt of noon that arrives in the evening is decided by the time of noon."""
    late = sold(MONDAY, MONDAY + 7 * HOUR)

    assert lots_of(TILL, late) == lots_of(BROKER, sold(None)) != lots_of(BROKER, late)
    (entry,) = played(TILL, late)[1]
    assert (late.append_time, "") == (entry.time, entry.reason)


def test_points_that_would_be_released_by_now_are_released_at_once():
    account, entries = played(TILL, sold(MONDAY - TILL.largest_backdating))

    assert [(Kind.EARNED, ""), (Kind.RELEASED, "")] == [(entry.kind, entry.reason) for entry in entries]
    assert 2_00 == account.available


def test_points_that_would_have_expired_by_now_expire_at_once():
    rules = replace(TILL, largest_backdating=30 * DAY)

    assert [(Kind.EARNED, 2_00), (Kind.EXPIRED, -2_00)] == [
        (entry.kind, entry.points) for entry in played(rules, sold(MONDAY - 8 * DAY))[1] if entry.points
    ]


@pytest.mark.parametrize("written", [MONDAY - 2 * DAY - 1, 0, -(2**63)])
def test_a_receipt_beyond_the_limit_counts_by_the_brokers_time_and_says_so(written):
    _, (entry,) = played(TILL, sold(written))

    assert "receipt-too-old" == entry.reason
    assert lots_of(TILL, sold(written)) == lots_of(BROKER, sold(None))


def test_a_blocked_card_is_the_reason_also_for_a_receipt_beyond_the_limit():
    rules = replace(TILL, blocked_cards=BlockedCards.EARN_NOTHING)
    block = Block(append_time=MONDAY - 1, command_id="block")

    assert ["", "card-blocked"] == [entry.reason for entry in played(rules, block, sold(MONDAY - 3 * DAY))[1]]


@pytest.mark.parametrize("written", [None, MONDAY, MONDAY + 1, 2**63 - 1])
def test_a_receipt_without_a_time_or_from_the_future_counts_by_the_brokers_time(written):
    _, (entry,) = played(TILL, sold(written))

    assert "" == entry.reason
    assert lots_of(TILL, sold(written)) == lots_of(BROKER, sold(None))


def test_a_receipt_follows_the_version_of_its_time():
    """The version at the arrival of the receipt allows this. The version at the receipt's time decides the points and
    the return.
    """
    former = replace(BROKER, loyalty_factor=Decimal("0.1"), pending=0)
    programmes = Programmes.of([former, replace(TILL, version=1, effective_time=MONDAY - HOUR)])
    late = sold(MONDAY - 2 * HOUR)
    back = Purchase(MONDAY + 1, "back", Decimal(-100), original_invoice_number="sold")

    account, (entry,) = played(programmes, late)
    assert (0, 10_00) == (entry.programme_version, account.available)
    assert 0 == played(programmes, late, back)[0].total


def test_campaigns_follow_the_receipt_within_the_limit_only():
    """With the time basis broker, campaigns follow the clock of the till, also if it is wrong."""
    yesterday = date(2024, 10, 3)
    campaign = Campaign("yesterday", yesterday, yesterday, multiplier=Decimal(3))
    day_before, long_ago = sold(MONDAY - DAY), sold(MONDAY - DAY, MONDAY + 3 * DAY)
    points = [
        played(replace(rules, campaigns=(campaign,)), event)[1][0].points
        for rules in (TILL, BROKER)
        for event in (day_before, long_ago)
    ]
    assert [6_00, 2_00, 6_00, 6_00] == points


def test_a_return_takes_the_points_of_its_own_late_receipt():
    """Both purchases arrive at noon. The points of the late receipt expire a day earlier."""
    late, other = sold(MONDAY - DAY, number="sold late"), sold(MONDAY, number="other")
    back = Purchase(MONDAY + 1, "back", Decimal(-100), original_invoice_number="sold late")

    assert lots_of(TILL, other) == lots_of(TILL, late, other, back)


def test_the_cap_of_a_day_counts_the_receipts_of_that_day():
    rules = replace(TILL, cap_per_day=3_00)
    today, yesterday = sold(MONDAY - HOUR, number="today"), sold(MONDAY - DAY, number="yesterday")

    for first, second in (today, yesterday), (yesterday, today):
        assert 4_00 == played(rules, first, replace(second, append_time=MONDAY + 1))[0].total
    assert 3_00 == played(rules, today, sold(MONDAY - 2 * HOUR, number="also today"))[0].total


def test_the_cap_of_a_day_counts_purchases_whose_return_window_is_over():
    """The first and the last receipt of a day of 25 hours. The last one arrives as late as the programme allows."""
    midnight = 1_792_879_200_000  # 2026-10-25 in Berlin
    rules = replace(
        TILL, cap_per_day=3_00, return_window=0, largest_backdating=30 * DAY, valid_for=None, time_zone="Europe/Berlin"
    )
    first, last = sold(midnight, midnight, number="first"), midnight + 25 * HOUR - 1
    late, next_day = (sold(time, last + 30 * DAY, number=f"sold-{time}") for time in (last, last + 1))

    assert 3_00 == played(rules, first, late)[0].total
    assert 4_00 == played(rules, first, next_day)[0].total


def test_the_cap_of_a_day_asks_the_calendar_only_for_purchases_of_about_that_day(monkeypatch):
    """The calendar is slow, and an account remembers the purchases of 90 days."""
    asked = []

    def end_of_day(time, time_zone):
        asked.append(time)
        return local_time.end_of_day(time, time_zone)

    monkeypatch.setattr(purchases, "end_of_day", end_of_day)
    events = [sold(None, MONDAY + day * DAY, number=f"sold-{day}") for day in range(90)]
    account = process(None, events, Programmes(), "card").account
    process(account, [sold(None, MONDAY + 90 * DAY)], Programmes((Programme(cap_per_day=3_00),)), "card")

    assert [90, 89] == [(time - MONDAY) // DAY for time in asked]


_RECEIPTS = st.lists(
    st.tuples(st.integers(0, 48), st.integers(0, 72), st.integers(1, 300)),
    min_size=1,
    max_size=6,
    unique_by=lambda r: r[0],
)


@settings(max_examples=examples(60), deadline=None)
@given(_RECEIPTS, st.randoms())
def test_late_receipts_end_in_the_points_of_receipts_in_time(receipts, dice):
    """The result is the same for any delay within the limit and any order, if no timer has to wait for them."""
    rules = replace(TILL, largest_backdating=4 * DAY, pending=0, valid_for=20 * DAY)
    written = [(MONDAY + hour * HOUR, str(amount), f"sold-{hour}") for hour, _, amount in receipts]
    in_time = [sold(time, time, amount, number) for time, amount, number in written]
    delays = [delay for _, delay, _ in receipts]
    late = [
        replace(each, append_time=each.append_time + delay * HOUR) for each, delay in zip(in_time, delays, strict=True)
    ]

    programmes, end = Programmes((rules,)), MONDAY + 10 * DAY
    totals = []
    for events in (in_time, dice.sample(late, len(late))):
        account, _ = played(rules, *events)
        totals.append(advance(account, end, programmes).account.lots)
    assert totals[0] == totals[1]


def test_a_late_receipt_takes_no_tier_away():
    """The version of the receipt does not know the tier that the customer has reached since."""
    tiers = (Tier("silver", 1_00), Tier("gold", 5_00))
    before = replace(TILL, version=1, tier_period=Period.YEAR, tiers=tiers, pending=0)
    more_tiers = (*tiers, Tier("platinum", 10_00, Decimal(2)))
    now = replace(before, version=2, effective_time=MONDAY - HOUR, tiers=more_tiers)

    _, entries = played(
        Programmes.of((before, now)),
        sold(MONDAY, MONDAY, "1000", number="reaches platinum"),
        sold(MONDAY - 2 * HOUR, MONDAY + HOUR, number="late"),
        sold(MONDAY + 2 * HOUR, MONDAY + 2 * HOUR, number="earns twice"),
    )

    assert [(20_00, ""), (0, "platinum"), (2_00, "platinum"), (4_00, "platinum")] == [
        (entry.points, entry.tier) for entry in entries
    ]


def test_a_late_receipt_counts_towards_no_tier_while_there_are_none():
    """The programme removes its tiers, and introduces them again. A late purchase that was returned counts nothing."""
    tiers = (Tier("silver", 0), Tier("gold", 5_00))
    before = replace(TILL, version=1, tier_period=Period.YEAR, tiers=tiers, pending=0)
    without = replace(TILL, version=2, effective_time=MONDAY)
    again = replace(before, version=3, effective_time=MONDAY + DAY)

    account, _ = played(
        Programmes.of((before, without, again)),
        sold(MONDAY - HOUR, MONDAY + HOUR, "1000", "late"),
        Purchase(MONDAY + 2 * HOUR, "back", Decimal(-1000), original_invoice_number="late"),
        sold(MONDAY + 2 * DAY, MONDAY + 2 * DAY, "10", "new"),
    )

    assert ("silver", 20) == (account.tier, account.earned_in_period)
