"""Recomputation: what an account ignored is no lost event, also after erasures, moves and returns."""

from dataclasses import replace
from decimal import Decimal

import pytest

from services.domain.account.model import Account, PastReturn
from services.domain.account.processor import process
from services.domain.entries import Kind
from services.domain.events import Absorb, Block, Capture, Erase, Forward, Line, Purchase, Replace
from services.domain.programme import DAY, Programmes
from services.domain.recomputation import recompute
from tests.support.account_histories import CARD, START, processed
from tests.unit.services.domain.purchases_and_returns import bought

PROGRAMMES = Programmes()
RETURNED = replace(bought(9, 1, -50), original_invoice_number="I8")
BACK = Purchase(START + 2 * DAY, "R", Decimal(-100), original_invoice_number="I1")
EXCHANGE = replace(
    BACK, invoice_number="X", total_amount=Decimal(0), lines=(Line("A", Decimal(-50)), Line("B", Decimal(50)))
)
ERASURE = Erase(append_time=START + 5, command_id="E")


def entries_of(arrived):
    """The entries of events that arrive one by one, in any order of their times."""
    state, entries = None, []
    for event in arrived:
        outcome = process(state, [event], PROGRAMMES, CARD)
        state, entries = outcome.state, entries + outcome.entries
    return entries


def messages_of(invoice):
    """The messages of the index of invoices and of the replaced card about an invoice."""
    number = invoice.invoice_number
    return (
        Forward(append_time=invoice.append_time + 5, command_id=f"{number}/forward", invoice=invoice),
        replace(invoice, append_time=invoice.append_time + 6, redirect_id=f"{number}/redirected"),
    )


def absorbed(*events):
    """A card that was replaced, after these events of its own."""
    old = processed([[Block(append_time=START, command_id="b")], *([each] for each in events)], PROGRAMMES).account
    return Absorb(append_time=START + 1, command_id="m/0/moved", counterparty="old", part=old)


def assert_nothing_is_late(*batches):
    history = processed(batches, PROGRAMMES)

    recomputed = recompute(CARD, history.events, history.entries, PROGRAMMES)

    assert [] == recomputed.not_processed
    assert [] == recomputed.late.entries


@pytest.mark.parametrize("days", [30, 90.5, 120])
def test_the_second_copy_of_a_return_never_counts(days):
    """The index forwards a return that came before its purchase. The account ignores it, and may forget the return."""
    early = Purchase(START, "R", Decimal(-50), original_invoice_number="P")
    purchase = Purchase(START + DAY, "P", Decimal(100))
    copy = Forward(append_time=START + DAY + 1, command_id="R/forward", invoice=early)
    history = processed([[early], [purchase], [copy], [bought(1, int(days * DAY))]], PROGRAMMES)

    recomputed = recompute(CARD, history.events, history.entries, PROGRAMMES)

    assert [] == recomputed.not_processed
    assert history.account == recomputed.late.account


def test_a_return_that_an_erased_account_had_read_counts_in_the_next_one():
    """The next account of the card buys what was returned. The index forwards the return."""
    early = Purchase(START, "R", Decimal(-50), original_invoice_number="P")
    purchase = Purchase(START + 2, "P", Decimal(100))
    history = processed([[early], [Erase(append_time=START + 1, command_id="E")], [purchase]], PROGRAMMES)
    copy = Forward(append_time=START + 3, command_id="R/forward", invoice=early)

    recomputed = recompute(CARD, [*history.events, copy], history.entries, PROGRAMMES)

    assert ["R/forward"] == recomputed.not_processed
    assert [-1_00] == [entry.points for entry in recomputed.late.entries]


def test_what_an_erased_card_ignored_in_the_millisecond_of_its_next_account_is_not_a_lost_event():
    """A replaced card forwards a purchase and another command in one batch. The purchase is applied first."""
    redirected = replace(bought(2, 7), redirect_id="I2/redirected")
    capture = Capture(append_time=START + 7, command_id="C/forwarded", origin_id="C", redemption_id="R")
    arrived = [bought(1, 1), ERASURE, redirected, capture]

    recomputed = recompute(CARD, arrived, entries_of(arrived), PROGRAMMES)

    assert ([], []) == (recomputed.not_processed, recomputed.late.entries)


def test_a_refused_replacement_does_not_move_the_account():
    """The account knows a return that came with another account. It ignores the message, and forgets the return."""
    refused = Replace(append_time=START + 3 * DAY, command_id="same", counterparty=CARD)
    message, _ = messages_of(replace(BACK, append_time=START + 4 * DAY))

    assert_nothing_is_late([absorbed(bought(1, 0), BACK)], [refused], [message], [bought(3, 150 * DAY)])


@pytest.mark.parametrize(
    "ignored",
    [
        Erase(append_time=START + 1, command_id="E/card", counterparty="other"),
        Forward(append_time=START + 2, command_id="R/forward", invoice=RETURNED),
        replace(RETURNED, customer_type="NONPRIME"),
    ],
)
def test_what_a_missing_account_ignored_does_not_concern_the_next_one(ignored):
    """The processor left no entry. Applied now, it would erase the account or take points back."""
    history = processed([[ignored], [bought(1, 2)]], PROGRAMMES)

    recomputed = recompute(CARD, history.events, history.entries, PROGRAMMES)

    assert [Kind.EARNED] == [entry.kind for entry in history.entries]
    assert [] == recomputed.not_processed
    assert history.account == recomputed.late.account


@pytest.mark.parametrize(
    "ignored",
    [
        Erase(append_time=START + 9, command_id="E/card", counterparty="other"),
        Forward(append_time=START + 9, command_id="R/forward", invoice=RETURNED),
    ],
)
@pytest.mark.parametrize("late", [bought(2, 2), bought(2, 7)], ids=["before the erasure", "after the erasure"])
def test_what_an_erased_card_ignored_does_not_concern_the_account_of_a_late_event(ignored, late):
    """A purchase arrives last. It is older than the ignored event, and it can be older than the erasure."""
    arrived = [bought(1, 1), ERASURE, ignored, late]

    recomputed = recompute(CARD, arrived, entries_of(arrived), PROGRAMMES)

    assert [] == recomputed.not_processed
    assert [] == recomputed.late.entries


def test_a_lost_erasure_soon_after_a_later_account_opened_is_not_ignored():
    """The earlier erasure of the card is too long ago to concern it."""
    arrived = [bought(1, 1), ERASURE, bought(2, 30 * DAY)]
    lost = Erase(append_time=START + 31 * DAY, command_id="E/card", counterparty="other")

    recomputed = recompute(CARD, [*arrived, lost], entries_of(arrived), PROGRAMMES)

    assert ["E/card"] == recomputed.not_processed
    assert recomputed.late.account is None


def test_a_return_of_an_account_that_a_late_event_opened_is_not_ignored():
    """The index forwards the return of the purchase that opened the account."""
    arrived = [bought(1, 1), ERASURE, bought(8, 2)]
    lost = Forward(append_time=START + 9, command_id="R/forward", invoice=RETURNED)

    recomputed = recompute(CARD, [*arrived, lost], entries_of(arrived), PROGRAMMES)

    assert ["R/forward"] == recomputed.not_processed


@pytest.mark.parametrize("message", [0, 1], ids=["from the index", "from the replaced card"])
def test_a_message_about_a_return_that_came_with_another_account_is_not_a_lost_event(message):
    """The account has no entry of the return. It ignores the message, and forgets the return later."""
    with_return = absorbed(bought(1, 0), BACK)

    assert_nothing_is_late([with_return], [messages_of(BACK)[message]], [bought(3, 150 * DAY)])


@pytest.mark.parametrize("invoice", [bought(8, 0), BACK])
def test_a_number_that_came_with_another_account_is_not_a_lost_event(invoice):
    """A till uses the number again. The account ignores this invoice, and forgets the number later."""
    again = replace(bought(8, 31 * DAY), invoice_number=invoice.invoice_number)

    assert_nothing_is_late([absorbed(bought(1, 0), invoice)], [again], [bought(3, 150 * DAY)])


@pytest.mark.parametrize("message", [0, 1], ids=["from the index", "from the replaced card"])
def test_a_number_that_came_in_a_message_is_not_a_lost_event(message):
    """A till uses the number of the return again. The account ignores this invoice, and forgets the number later."""
    again = replace(bought(8, 31 * DAY), invoice_number=BACK.invoice_number)

    assert_nothing_is_late([bought(1, 0)], [messages_of(BACK)[message]], [again], [bought(3, 150 * DAY)])


def test_a_number_that_came_with_another_account_counts_after_it_is_forgotten():
    history = processed([[absorbed(bought(8, 0))]], PROGRAMMES)

    recomputed = recompute(CARD, [*history.events, bought(8, 150 * DAY)], history.entries, PROGRAMMES)

    assert ["I8"] == recomputed.not_processed


def test_a_message_about_a_return_of_a_refused_part_is_a_lost_event():
    """The account has refused the part, for example because of its unknown version, so it does not know the return."""
    part = Account(START, returns={BACK.invoice_number: PastReturn(START, programme_version=7)})
    arrived = [bought(1, 0), Absorb(append_time=START + 1, command_id="m/0/moved", counterparty="old", part=part)]
    lost = messages_of(BACK)[0]

    recomputed = recompute(CARD, [*arrived, lost], entries_of(arrived), PROGRAMMES)

    assert [lost.event_id] == recomputed.not_processed


@pytest.mark.parametrize(
    "last", [Purchase(START + 100 * DAY, "later", Decimal(100)), Erase(append_time=START + 4 * DAY, command_id="E")]
)
def test_the_second_message_of_a_return_with_a_replaced_card_is_not_a_lost_event(last):
    """The index forwards the return, and the replaced card forwards it too. The account ignores the second message.

    Later the account has forgotten the return, or it is erased.
    """
    assert_nothing_is_late([absorbed()], [bought(1, DAY)], *([each] for each in messages_of(BACK)), [last])


def test_a_second_message_can_be_much_older_than_the_decision():
    """The return waits for its purchase for 20 days."""
    from_index, from_old_card = messages_of(replace(BACK, original_invoice_number="I5"))

    assert_nothing_is_late([absorbed()], [from_index], [from_old_card], [bought(5, 22 * DAY)], [bought(3, 150 * DAY)])


def test_a_message_that_an_account_ignored_before_it_moved_is_not_a_lost_event():
    """The return came with the account of another card. Now this account would forward the message to the next card."""
    _, from_old_card = messages_of(BACK)
    moved = Replace(append_time=START + 9 * DAY, command_id="move", counterparty="next")

    assert_nothing_is_late([absorbed(bought(1, 0), BACK)], [from_old_card], [moved])


@pytest.mark.parametrize(("number", "day"), [("unknown", 8), ("R", 10)])
def test_a_message_that_was_lost_before_or_after_an_account_moved_is_named(number, day):
    """Before the move the account did not know the first return. After it, it would have forwarded the second one."""
    _, from_old_card = messages_of(replace(BACK, append_time=START + day * DAY, invoice_number=number))
    moved = Replace(append_time=START + 9 * DAY, command_id="move", counterparty="next")
    history = processed([[absorbed(bought(1, 0), BACK)], [moved]], PROGRAMMES)

    recomputed = recompute(CARD, [*history.events, from_old_card], history.entries, PROGRAMMES)

    assert [from_old_card.event_id] == recomputed.not_processed


def test_the_second_message_of_an_exchange_that_earns_nothing_is_not_a_lost_event():
    from_index, from_old_card = messages_of(replace(EXCHANGE, customer_type="NONE"))

    assert_nothing_is_late([absorbed()], [bought(1, DAY)], [from_index], [from_old_card], [bought(3, 150 * DAY)])


@pytest.mark.parametrize(("invoice", "later"), [(EXCHANGE, 0), (BACK, 100 * DAY)])
def test_a_second_message_with_an_effect_is_a_lost_event(invoice, later):
    """The index forwards only the returned half of an exchange. After a long time a till uses a number again."""
    from_index, from_old_card = messages_of(invoice)
    history = processed([[absorbed()], [bought(1, DAY)], [from_index]], PROGRAMMES)
    lost = replace(from_old_card, append_time=from_old_card.append_time + later)

    recomputed = recompute(CARD, [*history.events, lost], history.entries, PROGRAMMES)

    assert [lost.event_id] == recomputed.not_processed


def test_an_account_after_an_erasure_opens_after_it_although_an_event_is_lost():
    """The lost event is older than the erasure, and the late one too."""
    history = processed([[bought(1, 1)], [bought(2, 2)], [ERASURE]], PROGRAMMES)

    recomputed = recompute(CARD, [*history.events[1:], bought(3, 3)], history.entries, PROGRAMMES)

    assert ["I1"] == [entry.event_id for entry in recomputed.without_event]
    assert START + 6 == recomputed.late.account.opened_time


@pytest.mark.parametrize("opener", [bought(3, 7), absorbed()], ids=["purchase", "account that moved here"])
def test_a_purchase_that_was_lost_in_the_millisecond_of_the_next_account_is_named(opener):
    """The processor applies these events before the purchase, so it would not have ignored it."""
    arrived = [bought(1, 1), ERASURE, replace(opener, append_time=START + 7)]
    lost = replace(bought(4, 7), redirect_id="I4/redirected")

    recomputed = recompute(CARD, [*arrived, lost], entries_of(arrived), PROGRAMMES)

    assert ["I4/redirected"] == recomputed.not_processed
