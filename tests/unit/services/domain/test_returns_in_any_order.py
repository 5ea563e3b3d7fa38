"""Returns and exchanges count once, in every order and in any batches."""

from dataclasses import replace
from decimal import Decimal
from itertools import count
from operator import neg

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.codecs.state import decode_account, encode_account
from services.domain.account.processor import process
from services.domain.account.purchases import MOST_WAITING
from services.domain.entries import Kind, ReturnReason
from services.domain.events import Adjust, Capture, Forward, Line, Purchase, Reserve, Void, halves
from services.domain.programme import DAY, Campaign, Period, Programme, Programmes, Tier
from services.domain.recomputation import recompute
from tests.support.return_histories import COMPLETE_RETURNS, RETURN_HISTORIES, expected_total, invoice, many
from tests.support.sequential_oracle import Rules, SequentialOracle

CARD = "card"

BOUGHT = invoice("bought", None, [Line("sofa", Decimal(100))], time=2)
RETURNED = invoice("returned", "bought", [Line("sofa", Decimal(-100))], time=1)
EXCHANGED = invoice("exchanged", "bought", [Line("sofa", Decimal(-100)), Line("bed", Decimal(150))], time=3)


PROGRAMMES = Programmes()


def played(batches, programmes=PROGRAMMES):
    """The account and the entries after these batches. The account goes through the state store after each batch."""
    account, entries = None, []
    for batch in batches:
        outcome = process(account, batch, programmes, CARD)
        account = outcome.account and decode_account(encode_account(outcome.account))
        entries += outcome.entries
    return account, entries


def standing(account):
    """The points, the points that count towards the tier, and whether the customer has reached it."""
    if account is None:
        return 0, 0, 0, False
    return account.total, account.available, account.earned_in_period, account.tier == "gold"


def facts(entries):
    return [(entry.kind, entry.points, entry.invoice_number, entry.reason) for entry in entries]


def test_a_return_that_is_read_before_its_purchase():
    """A purchase for 100.00 and its return leave 0.00. The return waits, and its entries say so."""
    for batches in ([[BOUGHT], [RETURNED]], [[RETURNED], [BOUGHT]], [[BOUGHT, RETURNED]]):
        assert 0 == played(batches)[0].total

    account, entries = played([[RETURNED], [BOUGHT]])
    assert [
        (Kind.RETURNED, 0, "returned", "purchase-unknown"),
        (Kind.EARNED, 2_00, "bought", ""),
        (Kind.RETURNED, -2_00, "returned", ""),
    ] == facts(entries)
    assert ["returned", "bought", "bought"] == [entry.event_id for entry in entries]
    assert [-100, 100, -100] == [entry.total_amount for entry in entries]
    assert {""} == {past.original for past in account.returns.values()}


def test_an_exchange_leaves_what_its_new_lines_earn():
    """A purchase for 100.00 and its exchange, with lines of -100.00 and +150.00, leave 3.00."""
    account, entries = played([[BOUGHT], [EXCHANGED]])

    assert 3_00 == account.total
    assert [(Kind.EARNED, 3_00), (Kind.RETURNED, -2_00)] == [(entry.kind, entry.points) for entry in entries[1:]]
    assert [Decimal(150), Decimal(-100)] == [entry.total_amount for entry in entries[1:]]
    assert 3_00 == played([[EXCHANGED], [BOUGHT]])[0].total


def test_the_new_lines_of_an_exchange_can_be_returned():
    back = invoice("back", "exchanged", [Line("bed", Decimal(-150))], time=4)

    for batches in ([[BOUGHT], [EXCHANGED], [back]], [[back], [EXCHANGED], [BOUGHT]]):
        assert 0 == played(batches)[0].total


def test_a_return_of_what_an_exchange_sold_is_no_return_of_a_return_after_the_window():
    """The account forgets the sold half before the returned half. The return takes nothing."""
    back = invoice("back", "exchanged", [Line("bed", Decimal(-150))], time=25 * DAY)
    account, entries = played([[BOUGHT], [EXCHANGED], [back]], Programmes((Programme(return_window=10 * DAY),)))

    assert 3_00 == account.total
    assert (Kind.RETURNED, 0, "back", "purchase-unknown") == facts(entries)[-1]


def test_a_partial_return_of_a_quantity():
    """One of three chairs goes back, and then the other two."""
    chairs = invoice("bought", None, [Line("chair", Decimal("29.97"))], time=1)
    first = invoice("first", "bought", [Line("chair", Decimal("-9.99"))], time=2)
    others = invoice("others", "bought", [Line("chair", Decimal("-19.98"))], time=3)

    assert [40, 0] == [played([[chairs], batch])[0].total for batch in ([first], [first, others])]


def test_two_returns_of_the_same_items_take_back_once():
    """The second one does not take the points of the other items of the invoice."""
    both = invoice("bought", None, [Line("sofa", Decimal(40)), Line("bed", Decimal(60))], time=1)
    returns = [invoice(number, "bought", [Line("sofa", Decimal(-40))], time=2) for number in ("a", "b")]

    account, entries = played([[both], *([each] for each in returns)])
    assert [2_00, -80, 0] == [entry.points for entry in entries]
    assert 1_20 == account.total


def test_a_return_of_a_return_is_refused():
    """The refusal changes no points. An invoice that is read before its original, or names itself, is refused, too."""
    again = invoice("again", "returned", [Line("sofa", Decimal(100))], time=5)
    itself = invoice("itself", "itself", [Line("sofa", Decimal(100))], time=5)

    refused = (Kind.REFUSED, 0, "again", "return-of-return")
    for batches in ([[BOUGHT], [RETURNED], [again]], [[again], [RETURNED], [BOUGHT]], [[again, RETURNED, BOUGHT]]):
        account, entries = played(batches)
        assert 0 == account.total
        assert refused in facts(entries)
    assert [(Kind.REFUSED, 0, "itself", "return-of-return")] == facts(played([[itself]])[1])


def test_a_return_waits_for_the_return_window():
    """After the window the account forgets the return, and a purchase with that number earns."""
    programmes = Programmes((Programme(return_window=20 * DAY),))

    for day, total in (19, 0), (21, 2_00):
        late = replace(BOUGHT, append_time=day * DAY)
        account, _ = played([[RETURNED], [late]], programmes)
        assert total == account.total
        assert (day == 19) == ("returned" in account.returns)


@pytest.mark.parametrize("window", [7, 14, 90])
def test_the_copy_of_a_return_counts_once_after_a_week_without_the_pipeline(window):
    """The return came six days before its purchase. The index forwards it when the pipeline runs again."""
    programmes = Programmes((Programme(return_window=window * DAY),))
    early = Purchase(1, "returned", Decimal(-50), original_invoice_number="bought")
    purchase = Purchase(6 * DAY, "bought", Decimal(100))
    copy = Forward(append_time=13 * DAY, command_id="returned/forward", invoice=early)
    account, entries = played([[early], [purchase], [copy]], programmes)
    assert 1_00 == account.total
    assert [0, 2_00, -1_00] == [entry.points for entry in entries]


@pytest.mark.parametrize("sold", [0, 30])
def test_the_copy_of_a_return_counts_once_if_its_purchase_came_at_the_last_moment(sold):
    """The return, or the exchange, waited for 18 days. The index forwards it a moment later."""
    versions = Programme(return_window=90 * DAY), Programme(1, effective_time=5 * DAY, return_window=10 * DAY)
    lines = (Line("a", Decimal(-50)), *([Line("b", Decimal(sold))] if sold else []))
    early = Purchase(6 * DAY, "returned", Decimal(sold - 50), original_invoice_number="bought", lines=lines)
    purchase = Purchase(24 * DAY - 1_000, "bought", Decimal(100), lines=(Line("a", Decimal(100)),))
    copy = Forward(append_time=24 * DAY + 5_000, command_id="returned/forward", invoice=early)
    first = Purchase(1, "first", Decimal(10))

    account, _ = played([[first], [early], [purchase], [copy]], Programmes(versions))

    assert 20 + 2 * sold + 1_00 == account.total


def test_a_waiting_return_is_forgotten_before_an_older_decided_one():
    """The purchase comes too late for the return. A copy of the return from the index then counts once."""
    programmes = Programmes((Programme(return_window=14 * DAY),))
    decided = Purchase(2, "decided", Decimal(-10), original_invoice_number="first")
    waits = Purchase(DAY, "waits", Decimal(-50), original_invoice_number="bought")
    copy = Forward(append_time=21 * DAY, command_id="waits/forward", invoice=waits)
    events = [Purchase(1, "first", Decimal(100)), decided, waits, Purchase(20 * DAY, "bought", Decimal(100)), copy]

    account, _ = played([[each] for each in events], programmes)

    assert 1_80 + 2_00 - 1_00 == account.total


@pytest.mark.parametrize("later", [1, 10 * DAY])
def test_a_return_of_the_last_moment_counts_after_newer_events(later):
    """It has waited in its topic, or in the index of invoices, which forwards it."""
    last = replace(RETURNED, append_time=BOUGHT.append_time + 90 * DAY)
    newer = Purchase(last.append_time + later, "newer", Decimal(100))
    copy = Forward(append_time=newer.append_time, command_id="returned/forward", invoice=last)

    for rest in ([newer], [last]), ([newer], [copy]), ([copy, newer],):
        assert 2_00 == played([[BOUGHT], *rest])[0].total


def test_a_number_that_comes_again_after_the_window_is_the_newest_purchase():
    """The account still has the first purchase of this number, for returns that wait in their topic."""
    again = replace(BOUGHT, append_time=99 * DAY)
    account, entries = played([[BOUGHT], [Purchase(50 * DAY, "other", Decimal(100))], [again]])

    assert ["other", "bought"] == list(account.purchases)
    assert 3 == len(entries)


def test_a_return_waits_for_the_new_purchase_of_a_number():
    """The till uses the number again. The account still has the first purchase when it reads the return."""
    again, back = replace(BOUGHT, append_time=95 * DAY), replace(RETURNED, append_time=96 * DAY)
    account, entries = played([[BOUGHT], [back], [again]])

    assert "purchase-unknown" == entries[1].reason
    assert 2_00 == account.total


def test_an_exchange_with_the_number_of_an_old_purchase_earns_points():
    """A replaced card sends it, and the index has forwarded its returned half before."""
    again = replace(EXCHANGED, append_time=95 * DAY, invoice_number="bought", original_invoice_number="other")
    half = Forward(append_time=again.append_time, command_id="bought/forward", invoice=again)
    account, _ = played([[BOUGHT], [half], [replace(again, redirect_id="bought/redirected")]])

    assert 2_00 + 3_00 == account.total


def test_a_return_after_the_window_says_so():
    late = replace(RETURNED, append_time=7 * DAY)
    programmes = Programmes((Programme(return_window=5 * DAY),))

    assert (Kind.RETURNED, 0, "returned", "return-window-over") == facts(played([[BOUGHT], [late]], programmes)[1])[-1]


def test_the_number_of_waiting_returns_is_bounded():
    """One more return takes nothing, also when its purchase comes."""
    waiting = [Purchase(1, f"r{n}", Decimal(-1), original_invoice_number=f"p{n}") for n in range(MOST_WAITING)]
    account, entries = played([waiting, [RETURNED], [BOUGHT]])

    assert ReturnReason.TOO_MANY_WAIT == entries[MOST_WAITING].reason
    assert 2_00 == account.total
    assert MOST_WAITING == sum(past.original != "" for past in account.returns.values())


def test_a_customer_who_has_left_the_programme_returns():
    """The return also waits in this account. A return opens no account, and a card without an account earns nothing."""
    left = replace(RETURNED, customer_type="NONPRIME")
    other = invoice("other", None, [Line("lamp", Decimal(10))], time=1)

    assert 20 == played([[other], [left], [BOUGHT]])[0].total
    assert (None, []) == played([[left]])
    swapped = replace(EXCHANGED, customer_type="NONPRIME")
    assert 0 == played([[BOUGHT], [swapped]])[0].total


@many
@given(RETURN_HISTORIES, st.lists(st.tuples(st.randoms(), st.integers(1, 4)), min_size=2, max_size=2))
def test_any_order_and_batches_end_in_the_same_total(invoices, orders):
    """Two drawn orders end in the total of the independent rule. Recomputation gives the same entries each time."""
    for dice, size in orders:
        order = dice.sample(invoices, len(invoices))
        account, entries = played(order[start : start + size] for start in range(0, len(order), size))

        assert expected_total(invoices) == (account.total if account else 0)
        assert entries == recompute(CARD, invoices, entries, Programmes()).settled.entries


RULES_OF_RETURNS = st.sampled_from(
    [
        Programme(),
        Programme(campaigns=(Campaign("milk", items=frozenset({"milk"}), multiplier=Decimal(3)),)),
        Programme(campaigns=(Campaign("bonus", bonus=5_00),), minimum_spend=Decimal(1)),
        Programme(excluded_items=frozenset({"gift-card"}), cap_per_invoice=50),
    ]
)


@many
@given(COMPLETE_RETURNS, RULES_OF_RETURNS, st.randoms(), st.integers(1, 4))
def test_a_complete_return_of_a_purchase_with_discounts_leaves_nothing(invoices, programme, dice, size):
    """Whatever the returns bring back together, and in any order."""
    order = dice.sample(invoices, len(invoices))
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    account, entries = played(batches, Programmes((programme,)))

    assert 0 == account.total
    assert entries == recompute(CARD, invoices, entries, Programmes((programme,))).settled.entries


def test_a_return_of_a_discounted_item_takes_what_the_customer_paid_for_it():
    """The milk for 100.00 had a discount of 10.00. The bread for 50.00 stays."""
    bought = invoice(
        "bought", None, [Line("milk", Decimal(100)), Line("off", Decimal(-10)), Line("bread", Decimal(50))], 1
    )
    lines = [Line("milk", Decimal(-100)), Line("off", Decimal(10), takes_back_discount=True)]
    exchange = invoice("exchange", "bought", [*lines, Line("bed", Decimal(150))], 2)

    assert 1_00 == played([[bought], [invoice("back", "bought", lines, 2)]])[0].total
    assert 1_00 + 3_00 == played([[bought], [exchange]])[0].total


POINTS = st.integers(1, 2_00)
REDEMPTIONS = st.integers(0, 3).map("reserve-{}".format)
COMMANDS = st.lists(
    st.builds(Adjust, append_time=st.just(0), command_id=st.just(""), points=POINTS | POINTS.map(neg))
    | st.builds(Reserve, append_time=st.just(0), command_id=st.just(""), points=POINTS)
    | st.builds(Capture, append_time=st.just(0), command_id=st.just(""), redemption_id=REDEMPTIONS)
    | st.builds(Void, append_time=st.just(0), command_id=st.just(""), redemption_id=REDEMPTIONS),
    max_size=8,
)
RULES = st.builds(Rules, gold_from=st.integers(1, 2_00), cap_per_invoice=POINTS, cap_per_day=POINTS)


@many
@given(RETURN_HISTORIES, COMMANDS, RULES, st.lists(st.tuples(st.randoms(), st.integers(1, 4)), min_size=2, max_size=2))
def test_each_order_equals_the_oracle_with_tiers_caps_and_commands(invoices, commands, rules, orders):
    """Tiers, caps and refusals depend on the order. The independent oracle agrees in each of two random orders.

    It also compares the points that count towards the tier, because a wrong number of them rarely changes a total.
    """
    programmes = Programmes(
        (
            Programme(
                tier_period=Period.YEAR,
                tiers=(Tier("gold", rules.gold_from, Decimal(2)),),
                cap_per_invoice=rules.cap_per_invoice,
                cap_per_day=rules.cap_per_day,
                reserve_for=365 * DAY,
            ),
        )
    )
    # A redemption is named by the number of its reserve among the reserves.
    reserves = count()
    names = [f"reserve-{next(reserves)}" if isinstance(each, Reserve) else f"c{i}" for i, each in enumerate(commands)]
    events = [*invoices, *(replace(each, command_id=name) for each, name in zip(commands, names, strict=True))]
    for dice, size in orders:
        order = dice.sample(events, len(events))
        order = [replace(each, append_time=(1 + number) * DAY // 5) for number, each in enumerate(order)]
        oracle = SequentialOracle(rules)
        for each in order:
            oracle.read(each)

        account, _ = played((order[start : start + size] for start in range(0, len(order), size)), programmes)

        assert (oracle.total, oracle.available, oracle.earned, oracle.is_gold) == standing(account)


@many
@given(RETURN_HISTORIES, st.randoms())
def test_an_exchange_equals_its_two_halves(invoices, dice):
    """A purchase and a return in place of each exchange, in another order, end in the same total."""
    separate = []
    for each in invoices:
        sold, returned = halves(each)
        if sold and returned:
            # The return half has a number of its own, and still must not return its own sale.
            returned = replace(returned, invoice_number=f"half of {each.invoice_number}")
            if each.original_invoice_number == each.invoice_number:
                returned = None
        separate += [half for half in (sold, returned) if half]
    accounts = [played([each] for each in dice.sample(each, len(each)))[0] for each in (invoices, separate)]

    assert 1 == len({account.total if account else 0 for account in accounts})
