"""Recomputation gives the account of the processor, for any order in which it received the events."""

from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from services.domain.account import commands
from services.domain.account.lots import Terms
from services.domain.account.memory import forget
from services.domain.account.model import Account
from services.domain.account.processor import advance, process
from services.domain.entries import Kind
from services.domain.events import Absorb, Adjust, Erase, Receive, Reserve, SentLot, Unreadable
from services.domain.programme import DAY, Period, Programme, Programmes, Tier
from services.domain.recomputation import in_order, recompute
from tests.support.account_histories import CARD, HISTORIES, PLAIN, START, processed
from tests.unit.services.domain.purchases_and_returns import bought

LATER = START + 120 * DAY
PROGRAMMES = Programmes()


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
