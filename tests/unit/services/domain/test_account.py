"""The account counts invoices in one order, whatever order they arrive in."""

from hypothesis import given
from hypothesis import strategies as st

from services import account_state
from services.domain.account import Account, Programme, Purchase
from services.domain.points import earned_points
from tests.strategies import AMOUNTS

PROGRAMME = Programme()
DAY = 24 * 60 * 60 * 1000

PURCHASES = st.lists(
    st.builds(Purchase, st.integers(0, 5 * DAY), st.integers(0, 99).map(str), AMOUNTS),
    max_size=12,
    unique_by=lambda purchase: purchase.invoice_number,
)


@given(PURCHASES)
def test_total_is_the_sum_of_the_invoices(purchases):
    """The running total is the sum of what each earns, the sequence is their number."""
    account, notifications = Account().count(purchases, PROGRAMME)

    assert sum(earned_points(purchase.total_amount) for purchase in purchases) == account.total
    assert len(purchases) == account.sequence == len(notifications)


@given(PURCHASES, st.randoms())
def test_order_of_arrival_within_a_batch_does_not_matter(purchases, dice):
    """A replayed batch gives the same account and the same notifications, however Spark shuffles it."""
    shuffled = dice.sample(purchases, len(purchases))

    assert Account().count(purchases, PROGRAMME) == Account().count(shuffled, PROGRAMME)


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


@given(PURCHASES)
def test_updated_time_is_that_of_the_latest_invoice(purchases):
    """An account without invoices was never updated."""
    account, _ = Account().count(purchases, PROGRAMME)

    assert max((purchase.append_time for purchase in purchases), default=0) == account.updated_time


@given(PURCHASES)
def test_account_survives_the_state_store(purchases):
    """What is written to Spark's state is what is read from it."""
    account, _ = Account().count(purchases, PROGRAMME)

    assert account == account_state.load(account_state.dump(account))
