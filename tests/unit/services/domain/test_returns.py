"""The points that returns of amounts take back: from which points, by which rules, and how long after the purchase."""

from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.account.lots import Terms
from services.domain.account.processor import process
from services.domain.entries import Kind
from services.domain.events import Adjust, Line, Purchase
from services.domain.programme import DAY, Campaign, Period, Programme, Programmes, Tier
from tests.support.examples import examples
from tests.support.oracles import earned_points
from tests.unit.services.domain.purchases_and_returns import after, back, buy, taken

SQUARE = Programme(loyalty_factor=Decimal("0.001"), rounding=ROUND_FLOOR)
"""One hundredth for 10 whole units of money, as Square's example has one point for 10 dollars."""


@pytest.mark.parametrize(("refund", "points"), [("1", 0), ("5", 0), ("10", 1), ("20", 2), ("105", 10), ("500", 10)])
def test_square_s_worked_examples(refund, points):
    """105 dollars earned 10. A refund of 1 or 5 takes 0, of 10 takes 1, of 20 takes 2, and of 105 takes 10.

    Source: developer.squareup.com/forums/t/22747.
    """
    assert [points] == taken(after(buy("105"), back(refund), programme=SQUARE))


def test_refund_takes_nothing_where_nothing_was_earned():
    """A purchase that is unknown or earned nothing has no points to take back. The return still creates an entry."""
    assert [0] == taken(after(buy("9"), back("9"), programme=SQUARE))
    assert [0] == taken(after(buy("105"), back("105", original="unknown"), programme=SQUARE))
    assert [0] == taken(after(back("105"), programme=SQUARE))


@settings(max_examples=examples(40))
@given(st.lists(st.integers(1, 40_00), min_size=1, max_size=8), st.integers(1, 150_00))
def test_many_small_returns_take_what_a_large_one_takes(refunds, amount):
    """Points are computed again for the rest of the purchase, so neither side gains from rounding."""
    refunds = [Decimal(cents).scaleb(-2) for cents in refunds]
    amount = Decimal(amount).scaleb(-2)
    small = after(buy(amount), *(back(refund, number=str(n), time=2 + n) for n, refund in enumerate(refunds)))
    remaining = max(Decimal(0), amount - sum(refunds))

    assert earned_points(float(amount)) - earned_points(float(remaining)) == sum(taken(small))


def test_a_positive_return_takes_the_same_points_if_it_names_its_original():
    """Some tills send returns as positive amounts."""
    returned = replace(back("50"), total_amount=Decimal(50))

    assert taken(after(buy("100"), back("50"))) == taken(after(buy("100"), returned)) == [1_00]


def test_return_counts_once():
    """A duplicate of the return, or of its purchase after it, changes nothing, also after the return window."""
    programme = Programme(return_window=DAY)
    events = buy("100"), back("50"), back("50", time=3), buy("100", time=4), back("50", time=27 * DAY)
    outcome = after(*events, programme=programme)

    assert [Kind.EARNED, Kind.RETURNED] == [entry.kind for entry in outcome.entries]


def test_return_in_the_millisecond_of_its_purchase():
    """The purchase counts before its return, whatever their invoice numbers are."""
    assert [2_00] == taken(after(back("100", number="a", original="b"), buy("100", number="b", time=2)))


def test_return_without_a_reference_takes_the_newest_purchases_first():
    """So older purchases stay for later returns. The return takes no more points than the purchases earned."""
    events = [buy("100", "old"), buy("30", "new", 2)]

    outcome = after(*events, back("50", original=None, time=3))
    assert [1_00] == taken(outcome)
    assert (Decimal(80), 1_60) == outcome.account.purchases["old"][1:3]
    assert (Decimal(0), 0) == outcome.account.purchases["new"][1:3]
    assert [2_60] == taken(after(*events, back("1000", original=None, time=3)))
    events, capped = [buy("100", "old"), buy("100", "new", 2)], Programme(cap_per_invoice=1_00)
    assert [1_00] == taken(after(*events, back("80", original=None, time=3), programme=capped))
    tiered = replace(capped, tier_period=Period.YEAR, tiers=(Tier("gold", 9_00),))
    outcome = after(*events, back("100", original=None, time=3), programme=tiered)
    assert (1_00, 1_00) == (outcome.account.total, outcome.account.earned_in_period)


@pytest.mark.parametrize("original", ["old", None])
def test_the_order_of_reading_does_not_decide_which_purchase_is_the_newest(original):
    """Two shops are two partitions. The query can read their purchases of one day in any order.

    The redemption spends the points of the older purchase, so those of the newer one expire. A return without an
    original takes the newer purchase first, so it takes nothing for this part.
    """
    programme = Programme(valid_for=5 * DAY)
    invoices = buy("50", "old"), buy("100", "new", 2)
    spent = Adjust(append_time=3, command_id="spent", points=-1_00)
    given = Adjust(append_time=4 * DAY, command_id="given", points=5_00)
    end = back("120", original=None, time=7 * DAY) if original is None else back("50", original, time=7 * DAY)
    expected = 40 if original is None else 1_00

    for order in invoices, invoices[::-1]:
        account = None
        for event in (*order, spent, given):
            account = after(event, programme=programme, account=account).account
        assert [expected] == taken(after(end, programme=programme, account=account))


def test_return_of_a_customer_who_no_longer_takes_part():
    """A return of a known purchase takes its points back. A return without a reference has no effect."""
    known = replace(back("50"), customer_type="NONPRIME")

    assert [1_00] == taken(after(buy("100"), known))
    assert [] == taken(after(buy("100"), replace(known, original_invoice_number=None)))


@pytest.mark.parametrize(
    ("pending", "time", "left"),
    [
        (5 * DAY, 3 * DAY, {Terms(32 * DAY, 6 * DAY): 2_00, Terms(34 * DAY, 8 * DAY): 1_00}),
        (5 * DAY, 7 * DAY, {Terms(32 * DAY): 2_00, Terms(34 * DAY, 8 * DAY): 1_00}),
        (0, 7 * DAY, {Terms(32 * DAY): 2_00, Terms(34 * DAY): 1_00}),
    ],
)
def test_return_takes_from_the_lot_of_its_purchase(pending, time, left):
    """It takes the pending or released points of this lot, not those of other purchases, even if they expire sooner."""
    programme = Programme(pending=pending, valid_for=30 * DAY)
    events = [buy("100", "first", DAY), buy("100", "second", 2 * DAY), buy("50", "third", 3 * DAY)]
    returned = back("100", "second", time=time)

    assert left == after(*events, returned, programme=programme).account.lots


def test_pending_points_of_one_day_are_told_apart():
    """They expire together, but the points of each purchase are released at their own time."""
    programme = Programme(pending=5 * DAY, valid_for=30 * DAY)
    events = [buy("100", "first", DAY), buy("100", "second", DAY + 1), back("100", "second", time=DAY + 2)]

    assert {Terms(32 * DAY, 6 * DAY): 2_00} == after(*events, programme=programme).account.lots


def test_return_is_computed_by_the_rules_of_the_purchase():
    """The return uses the campaign, the factor and the tier of the purchase, although they have changed since."""
    campaign = Campaign("opening", first_day=None, multiplier=Decimal(2))
    first = Programme(
        campaigns=(campaign,), tier_period=Period.YEAR, tiers=(Tier("base", 0), Tier("gold", 4_00, Decimal(2)))
    )
    second = Programme(1, effective_time=100, loyalty_factor=Decimal("0.5"))
    events = [buy("100"), buy("100", "as gold", 2), back("50", time=100), back("50", "as gold", "later", 101)]
    outcome = process(None, events, Programmes.of([first, second]), "card")

    assert [4_00, 8_00] == [entry.points for entry in outcome.entries if entry.kind == Kind.EARNED]
    assert [2_00, 4_00] == taken(outcome)
    assert {1} == {entry.programme_version for entry in outcome.entries if entry.kind == Kind.RETURNED}


def test_return_finds_the_campaign_of_a_purchase_without_the_clock_of_its_till():
    noon = Campaign("noon", hours=(12, 13), multiplier=Decimal(3))
    bought = buy("100", time=DAY // 2)

    assert [3_00] == taken(after(bought, back("50", time=DAY), programme=Programme(campaigns=(noon,))))


def test_lot_of_a_purchase_is_found_by_the_rules_of_the_purchase():
    """An old version gives points that expire soon, and the current version gives points that never expire."""
    programmes = Programmes.of([Programme(valid_for=30 * DAY), Programme(1, effective_time=DAY)])
    early, old, new = buy("50", "early"), buy("100", "old", DAY - 1), buy("100", "new", DAY)
    account = process(None, [early, old, new, back("100", "new", time=2 * DAY)], programmes, "card").account

    assert {Terms(31 * DAY): 3_00} == account.lots
    account = process(None, [early, old, new, back("100", "old", time=2 * DAY)], programmes, "card").account
    assert {Terms(31 * DAY): 1_00, Terms(): 2_00} == account.lots


@pytest.mark.parametrize(
    ("window", "age", "points", "entries"),
    [
        (90 * DAY, 90 * DAY, 2_00, 1),
        (90 * DAY, 90 * DAY + 1, 0, 2),
        (5 * DAY, 5 * DAY, 2_00, 1),
        (5 * DAY, 5 * DAY + 1, 0, 1),
        (5 * DAY, 10 * DAY, 0, 1),
        (5 * DAY, 10 * DAY + 1, 0, 2),
    ],
)
def test_a_return_after_the_window_takes_nothing_back(window, age, points, entries):
    """A window shorter than ten days also counts. The account still recognises a duplicate for ten days."""
    programme, bought, time = Programme(return_window=window), buy("100"), 1 + age

    for original in ("bought", None):
        assert [points] == taken(after(bought, back("100", original=original, time=time), programme=programme))
    assert entries == len(after(bought, buy("100", time=time), programme=programme).entries)


def test_the_version_of_a_purchase_decides_how_long_it_can_be_returned():
    """The longer window of a later version does not reopen a purchase, with or without events in between."""
    programmes = Programmes.of([Programme(return_window=5 * DAY), Programme(1, effective_time=DAY)])
    bought, late = buy("100"), back("100", time=20 * DAY)
    without_entry = replace(bought, invoice_number="other", customer_type="OTHER", append_time=15 * DAY)
    states = [process(None, [bought, *others], programmes, "card").state for others in ([], [without_entry])]

    assert [[0], [0]] == [
        [each.points for each in process(state, [late], programmes, "card").entries] for state in states
    ]


def test_return_below_the_minimum_spend_takes_everything():
    """50.00 remain after the first return, and 49.00 after the second one."""
    programme = Programme(minimum_spend=Decimal(50))

    assert [1_00, 1_00] == taken(after(buy("100"), back("50"), back("1", number="b", time=3), programme=programme))


def test_return_above_the_cap_takes_nothing():
    """The invoice earned 1.00 of 2.00. Its points stay the same until less than 50.00 remain."""
    programme = Programme(cap_per_invoice=1_00)

    assert [0, 20] == taken(after(buy("100"), back("50"), back("10", number="b", time=3), programme=programme))


def test_the_cap_of_a_day_counts_what_was_not_returned():
    """The day ends at midnight in Berlin. A return frees its points for another purchase of the day."""
    programme = Programme(cap_per_day=3_00, time_zone="Europe/Berlin")
    midnight = DAY - 3_600_000
    events = [
        buy("100", "a", 1),
        buy("100", "b", 2),
        back("100", "a", time=3),
        buy("200", "c", 4),
        buy("200", "d", midnight - 1),
        buy("200", "e", midnight),
    ]
    outcome = after(*events, programme=programme)

    assert [2_00, 1_00, -2_00, 2_00, 0, 3_00] == [entry.points for entry in outcome.entries]


def test_an_exchange_with_the_number_of_a_known_return_changes_nothing():
    """The account remembers the number for longer than the query drops duplicates. No replaced card has sent it."""
    returned = Purchase(2, "R", Decimal(-50), original_invoice_number="bought")
    lines = (Line("A", Decimal(-50)), Line("B", Decimal(100)))
    exchange = replace(returned, append_time=3, total_amount=Decimal(50), lines=lines)
    account = process(None, [Purchase(1, "bought", Decimal(500)), returned], Programmes(), "card").account

    assert [] == process(account, [exchange], Programmes(), "card").entries
