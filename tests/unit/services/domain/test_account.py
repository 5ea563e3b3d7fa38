"""The account counts each invoice once, in one order."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from services import account_state
from services.domain.account import Account, Programme, Purchase
from services.domain.points import earned_points
from tests.strategies import AMOUNTS

PROGRAMME = Programme(repeat_horizon=timedelta(days=9))
DAY = 24 * 60 * 60 * 1000

PURCHASES = st.lists(st.builds(Purchase, st.integers(0, 5 * DAY), st.integers(0, 8).map(str), AMOUNTS), max_size=12)


def unique(purchases):
    first = {}
    for purchase in sorted(purchases):
        first.setdefault(purchase.invoice_number, purchase)
    return list(first.values())


@given(PURCHASES)
def test_total_is_the_sum_of_each_invoice_once(purchases):
    """The running total is the sum over the first of each invoice number, the sequence is their number."""
    account, notifications = Account().count(purchases, PROGRAMME)

    assert sum(earned_points(purchase.total_amount) for purchase in unique(purchases)) == account.total
    assert len(unique(purchases)) == account.sequence == len(notifications)


@given(PURCHASES, st.randoms())
def test_order_of_arrival_within_a_batch_does_not_matter(purchases, dice):
    """A replayed batch gives the same account and the same notifications, however Spark shuffles it."""
    shuffled = dice.sample(purchases, len(purchases))

    assert Account().count(purchases, PROGRAMME) == Account().count(shuffled, PROGRAMME)


@given(PURCHASES)
def test_a_repeated_batch_changes_nothing(purchases):
    """Invoices that were counted before give no notification and leave the account as it is."""
    account, _ = Account().count(purchases, PROGRAMME)

    assert (account, []) == account.count(purchases, PROGRAMME)


@given(PURCHASES, PURCHASES)
def test_each_notification_is_a_prefix_of_the_running_total(first, second):
    """Totals add up notification by notification, and sequences count 1, 2, 3 … over batches."""
    account, notifications = Account().count(first, PROGRAMME)
    account, more = account.count(second, PROGRAMME)
    total = 0
    for sequence, notification in enumerate(notifications + more, start=1):
        total += notification.earned
        assert total == notification.total
        assert sequence == notification.sequence
    assert total == account.total


def test_invoice_numbers_are_forgotten_after_the_horizon():
    """State does not grow for ever: what no repeat can follow any more is dropped, and counts again if it comes."""
    account, _ = Account().count([Purchase(0, "a", 100.0)], PROGRAMME)
    account, _ = account.count([Purchase(9 * DAY, "b", 100.0)], PROGRAMME)
    assert {"a", "b"} == set(account.recent_invoices)

    account, _ = account.count([Purchase(9 * DAY + 1, "c", 100.0)], PROGRAMME)

    assert {"b", "c"} == set(account.recent_invoices)


@given(PURCHASES)
def test_account_survives_the_state_store(purchases):
    """What is written to Spark's state is what is read from it."""
    account, _ = Account().count(purchases, PROGRAMME)

    assert account == account_state.load(account_state.dump(account))
