"""Recomputation gives the account of the processor, for any order in which it received the events."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.account import commands
from services.domain.account.lots import Terms
from services.domain.account.memory import forget
from services.domain.account.model import Account, PastReturn
from services.domain.account.processor import advance, process
from services.domain.entries import Kind
from services.domain.events import (
    Absorb,
    Adjust,
    Block,
    Capture,
    Erase,
    Forward,
    Line,
    Purchase,
    Receive,
    Replace,
    Reserve,
    SentLot,
    Unreadable,
)
from services.domain.programme import DAY, Period, Programme, Programmes, Tier
from services.domain.recomputation import in_order, recompute
from tests.support.account_histories import CARD, HISTORIES, PLAIN, START, processed

LATER = START + 120 * DAY
PROGRAMMES = Programmes()


def bought(number, time, amount=100):
    return Purchase(START + time, f"I{number}", Decimal(amount))


def later(account, programmes):
    """The account after the changes that time makes without an entry."""
    if account is None:
        return None
    account = advance(account, LATER, programmes).account
    forget(account, LATER, programmes)
    return account


@given(HISTORIES, st.randoms())
def test_the_same_entries_and_the_same_account(history, dice):
    """Events and recorded entries in any order, also with duplicates, give the entries, commands and account again."""
    events = dice.sample(history.events * 2, 2 * len(history.events))
    record = dice.sample(history.entries * 2, 2 * len(history.entries))

    recomputed = recompute(CARD, events, record, history.programmes)

    assert in_order(history.entries) == recomputed.settled.entries
    assert sorted(history.sent) == sorted(recomputed.settled.sent)
    assert later(history.account, history.programmes) == later(recomputed.settled.account, history.programmes)
    assert [] == recomputed.without_event
    assert [] == recomputed.not_processed


def test_an_event_counts_at_the_time_of_its_entry():
    """An archive can lack the copy that counted, and have an earlier one. Other rules were in force then."""
    later_rules = replace(PLAIN, version=1, effective_time=START + 50, loyalty_factor=Decimal("0.04"))
    programmes = Programmes((PLAIN, later_rules))
    history = processed([[bought(1, 60)]], programmes)

    recomputed = recompute(CARD, [bought(1, 40)], history.entries, programmes)

    assert history.entries == recomputed.settled.entries
    assert history.account == recomputed.late.account


def test_a_purchase_after_the_memory_is_not_the_event_of_an_old_entry():
    """Retention has deleted the first purchase. The second one has the same number and no entry yet: it counts once."""
    history = processed([[bought(1, 0)]], PROGRAMMES)

    recomputed = recompute(CARD, [bought(1, 400 * DAY, 70)], history.entries, PROGRAMMES)

    assert history.entries == recomputed.without_event
    assert [140] == [entry.points for entry in recomputed.late.entries if entry.event_id]


def test_a_copy_of_a_command_does_not_count_for_an_entry_that_is_much_newer():
    """A forged entry must not count the copy that a caller has sent for safety."""
    first = Adjust(append_time=START, command_id="C", points=5_000)
    history = processed([[first]], PROGRAMMES)
    forged = replace(history.entries[0], sequence=2, time=START + 11 * DAY)
    copy = replace(first, append_time=START + 5 * 60_000)

    recomputed = recompute(CARD, [first, copy], [*history.entries, forged], PROGRAMMES)

    assert [forged] == recomputed.without_event
    assert 5_000 == recomputed.late.account.total


def test_events_without_record_come_last_and_are_named():
    """Events without an entry follow all recorded events. A duplicate of a recorded event is not an event without an
    entry. The first copy of a lost event counts.
    """
    history = processed([[bought(1, 50)], [bought(2, 60)]], PROGRAMMES)
    copies, lost = [bought(1, 45), bought(1, 55)], [bought(3, 2), bought(3, 1)]

    recomputed = recompute(CARD, [*copies, *history.events, *lost], history.entries, PROGRAMMES)

    assert history.entries == recomputed.settled.entries
    assert ["I3"] == recomputed.not_processed
    assert (3, 600) == (recomputed.late.account.sequence, recomputed.late.account.total)
    assert [START + 1] == [entry.time for entry in recomputed.late.entries]


def test_a_number_that_a_till_uses_again_is_a_new_purchase():
    """The new purchase has no entry yet. A copy that the account still remembers is no new purchase."""
    history = processed([[bought(1, 0)]], PROGRAMMES)
    copy, again = bought(1, 80 * DAY, 5), bought(1, 365 * DAY, 7)

    recomputed = recompute(CARD, [*history.events, copy, again], history.entries, PROGRAMMES)

    assert ["I1"] == recomputed.not_processed
    assert history.entries == recomputed.settled.entries
    assert [14] == [entry.points for entry in recomputed.late.entries if entry.event_id]


def test_an_event_without_effect_needs_no_record():
    """An invoice of a customer type that does not take part has no entry, and none is missing."""
    recomputed = recompute(CARD, [replace(bought(1, 1), customer_type="OTHER")], [], PROGRAMMES)

    assert [] == recomputed.not_processed
    assert recomputed.late.account is None


def test_entries_of_events_that_are_not_there_are_named():
    """An entry without an event is reported, and the other entries are recomputed without it."""
    history = processed([[bought(1, 1)], [bought(2, 2)]], PROGRAMMES)

    recomputed = recompute(CARD, [history.events[1]], history.entries, PROGRAMMES)

    assert ["I1"] == [entry.event_id for entry in recomputed.without_event]
    assert [200] == [entry.total for entry in recomputed.settled.entries]


def test_an_account_whose_first_event_is_lost_has_the_tier_of_its_entry():
    """The next purchase earns by this tier."""
    tiers = (Tier("basic", 0, Decimal(2)), Tier("gold", 500, Decimal(3)))
    programmes = Programmes((Programme(tiers=tiers, tier_period=Period.YEAR),))
    history = processed([[bought(1, 1)]], programmes)

    recomputed = recompute(CARD, [bought(2, 2)], history.entries, programmes)

    assert ("basic", 400) == (recomputed.late.entries[-1].tier, recomputed.late.account.total)


def test_a_part_that_only_a_newer_release_can_read_is_a_lost_event():
    """The entry shows that the account got its points. The refusal of this release must not take them."""
    first, part = bought(1, 1), Account(START, lots={Terms(0, 0, 0): 500})
    absorb = Absorb(append_time=START + 2, command_id="move/0/moved", counterparty="former", part=part)
    unreadable = Unreadable(append_time=START + 2, command_id="move/0/moved", counterparty="former", payload=b"newer")
    history = processed([[first], [absorb]], PROGRAMMES)

    recomputed = recompute(CARD, [first, unreadable], history.entries, PROGRAMMES)

    assert history.entries[1:] == recomputed.without_event


def test_a_command_that_a_rebuild_has_sent_again_is_the_event_of_its_second_entry():
    """The account processed it after the events in between, so a later rebuild must do the same."""
    first, second = bought(1, 0), bought(2, 20)
    lost, again = (
        Receive(append_time=START + time, command_id="T1/in", counterparty="sender", lots=(SentLot(500, 0),))
        for time in (10, 30)
    )
    history = processed([[first], [lost]], PROGRAMMES)
    rebuilt = recompute(CARD, [first], history.entries, PROGRAMMES).late.account
    after = process(rebuilt, [second, again], PROGRAMMES, CARD)

    recomputed = recompute(CARD, [first, second, again], [*history.entries, *after.entries], PROGRAMMES)

    assert history.entries[1:] == recomputed.without_event
    assert [*history.entries[:1], *after.entries] == recomputed.settled.entries


def test_events_whose_entries_are_deleted_come_first():
    """Retention has deleted the first entries. Older events are processed in the order of their times, and once."""
    history = processed([[bought(1, 1)], [bought(2, 2)], [bought(3, 200 * DAY)]], PROGRAMMES)

    recomputed = recompute(CARD, reversed(history.events), history.entries[2:], PROGRAMMES, complete_from=START + 3)

    assert history.entries == recomputed.settled.entries
    assert [] == recomputed.not_processed


def test_a_record_is_complete_from_the_given_millisecond():
    """An event of that time must have an entry."""
    event = bought(1, 3)

    recomputed = recompute(CARD, [event], [], PROGRAMMES, complete_from=event.append_time)

    assert ["I1"] == recomputed.not_processed


def test_redemptions_that_an_earlier_version_accepted_are_accepted_again(monkeypatch):
    """Earlier versions had no limit of open redemptions. It still decides refused ones and those without an entry."""
    reserves = [Reserve(append_time=START + time, command_id=f"C{time}", points=1) for time in range(2, 6)]
    earlier = processed([[bought(1, 1), *reserves[:2]]], PROGRAMMES)
    monkeypatch.setattr(commands, "MOST_RESERVATIONS", 1)
    now = process(earlier.account, [reserves[2]], PROGRAMMES, CARD)

    recomputed = recompute(CARD, [*earlier.events, *reserves[2:]], earlier.entries + now.entries, PROGRAMMES)

    assert earlier.entries + now.entries == recomputed.settled.entries
    assert now.account == recomputed.settled.account
    assert ["reserved", "reserved", "refused", "refused"] == [
        *(entry.kind for entry in recomputed.settled.entries[1:]),
        *(entry.kind for entry in recomputed.late.entries),
    ]


def test_a_false_opened_time_of_the_record_is_not_taken_over():
    history = processed([[bought(1, 1)]], PROGRAMMES)

    recomputed = recompute(CARD, history.events, [replace(history.entries[0], opened_time=START)], PROGRAMMES)

    assert history.entries == recomputed.settled.entries


def test_a_new_account_after_an_erasure_in_the_same_millisecond():
    """The new account gets the opened time that the processor chose. It differs from that of the erased account."""
    history = processed(
        [[bought(1, 1), Erase(append_time=START + 2, command_id="C1"), bought(2, 3)], [bought(3, 4)]], PROGRAMMES
    )

    recomputed = recompute(CARD, history.events, history.entries, PROGRAMMES)

    assert history.entries == recomputed.settled.entries
    assert [Kind.EARNED, Kind.ERASED, Kind.EARNED, Kind.EARNED] == [e.kind for e in recomputed.settled.entries]


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


RETURNED = replace(bought(9, 1, -50), original_invoice_number="I8")
BACK = Purchase(START + 2 * DAY, "R", Decimal(-100), original_invoice_number="I1")
EXCHANGE = replace(
    BACK, invoice_number="X", total_amount=Decimal(0), lines=(Line("A", Decimal(-50)), Line("B", Decimal(50)))
)


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
