"""The audit finds facts that differ from the events, and marks differences that may settle."""

from dataclasses import replace
from decimal import Decimal

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.audit.comparison import Coverage, compare
from services.audit.facts import Facts, Source
from services.codecs.events import ARCHIVED
from services.codecs.records import balance_record, entry_from_notification, notification_record
from services.domain.account.model import PastPurchase
from services.domain.entries import Kind
from services.domain.events import Adjust, Capture, Erase, Line, Purchase, Replace, Reserve, Transfer, Unreadable
from services.domain.formats import short_time_text
from services.domain.programme import DAY, Period, Programme, Programmes, Tier
from services.state_stores.catalogue import balance_body
from tests.support.account_histories import CARD, HISTORIES, START, processed

EVERYTHING = Coverage(frozenset(Source), 0, 0, 0, START + 200 * DAY)


PROGRAMMES = Programmes()
STANDING = ("NextExpiryTime", "NextExpiryPoints", "Blocked", "MovedTo")


def balance(entry):
    return orjson.loads(balance_body(balance_record(CARD, entry)))


def facts_of(history):
    """The facts of an account without differences."""
    last = history.entries[-1] if history.entries else None
    return Facts(
        events=list(history.events),
        recorded={Source.LOYALTY: list(history.entries), Source.LEDGER: list(history.entries)},
        balance=balance(last) if last and last.kind is not Kind.ERASED else None,
        state=history.account,
    )


def found(facts, programmes=PROGRAMMES, coverage=EVERYTHING):
    return compare(CARD, facts, programmes, coverage, pseudonymize)[0].differences


def pseudonymize(card):
    return card if card.startswith("p-") else f"p-{card}"


@pytest.fixture
def three():
    """The history of three purchases."""
    return processed([[Purchase(START + n, f"I{n}", Decimal(100))] for n in (1, 2, 3)], PROGRAMMES)


@pytest.fixture
def facts(three):
    """The facts of three purchases, without differences."""
    return facts_of(three)


@given(HISTORIES)
def test_results_of_the_processor_have_no_differences(history):
    """The results of the processor have no differences in any source."""
    assert [] == found(facts_of(history), history.programmes)


@given(HISTORIES, st.data())
def test_a_changed_entry_is_found(history, data):
    """If one field of an entry differs in one source, the audit names this source."""
    assume(history.entries)
    facts = facts_of(history)
    where = data.draw(st.sampled_from([Source.LOYALTY, Source.LEDGER]))
    at = data.draw(st.integers(0, len(history.entries) - 1))
    field, change = data.draw(st.sampled_from([("points", 1), ("total", -5), ("available", 1), ("expires_time", 7)]))
    entry = facts.recorded[where][at]
    facts.recorded[where][at] = replace(entry, **{field: getattr(entry, field) + change})

    assert any(
        difference.where == where and field in difference.what for difference in found(facts, history.programmes)
    )


@given(HISTORIES, st.data())
def test_a_lost_event_is_found(history, data):
    """The audit finds an event that is missing in the inputs."""
    ids = [entry.event_id for entry in history.entries if entry.event_id and entry.kind is not Kind.LAPSED]
    assume(ids)
    lost = data.draw(st.sampled_from(ids))
    facts = facts_of(history)
    facts.events = [event for event in facts.events if event.event_id != lost]

    assert any(lost in each.what for each in found(facts, history.programmes) if each.where is Source.EVENT)


@pytest.mark.parametrize(
    ("lost", "first", "is_recomputed"),
    [
        ("I1", {}, True),
        ("I1", {"first_invoice": START + 2}, True),
        ("I1", {"first_invoice": START + 3}, False),
        ("C1", {"first_invoice": START + 9}, True),
        ("C1", {"first_command": START + 3}, True),
        ("C1", {"first_command": START + 4}, False),
        ("", {"first_invoice": START + 9, "first_command": START + 9}, True),
    ],
)
def test_events_of_before_the_first_record_of_their_topic_are_lost(lost, first, is_recomputed):
    """The topic was created again. The audit must not recompute an account that lacks its older events."""
    events = [Purchase(START + 2, "I1", Decimal(100)), Adjust(append_time=START + 3, command_id="C1", points=5)]
    facts = facts_of(processed([[each] for each in events], PROGRAMMES))
    facts.events = [event for event in events if event.event_id != lost]
    coverage = replace(EVERYTHING, **first)
    assert is_recomputed == compare(CARD, facts, PROGRAMMES, coverage, pseudonymize)[0].recomputed


@given(HISTORIES, st.data())
def test_entries_that_topic_and_ledger_have_lost_are_no_difference(history, data):
    """Retention has deleted the first entries from the topic. The ledger has all entries, or began after the loss."""
    facts = facts_of(history)
    lost = data.draw(st.integers(0, len(history.entries)))
    appended = max((entry.time for entry in history.entries[: lost + 1]), default=START) + 1
    topic_from = appended if lost < len(history.entries) else EVERYTHING.now
    coverage = replace(EVERYTHING, topic_from=topic_from)
    facts.recorded[Source.LOYALTY] = history.entries[lost:]
    assert (True, False, []) == judged(facts, history.programmes, coverage)

    facts.recorded[Source.LEDGER] = history.entries[lost:]
    assert (not lost, lost > 0, []) == judged(facts, history.programmes, coverage)


def test_a_topic_that_was_created_again_lacks_older_entries():
    """The topic begins at offset 0 and looks complete. The ledger is restored from a backup. It has only the first
    entry of the card, or no entry of a card that has sent points to another card and was erased later.
    """
    first, second = (Purchase(START + n, f"I{n}", Decimal(100)) for n in (1, 2))
    gift = Transfer(append_time=START + 1, command_id="C1", points=100, counterparty="4712")
    erase = Erase(append_time=START + 2, command_id="C2")
    for events, in_backup in (([first, second], 1), ([first, gift, erase], 0)):
        history = processed([[each] for each in events], PROGRAMMES)
        served = balance(history.entries[-1]) if in_backup else None
        facts = Facts(list(history.events), {Source.LEDGER: history.entries[:in_backup]}, served)
        for first_entry, lacks_entries in ((START + 2, False), (START + 3, True)):
            compared = frozenset({Source.LOYALTY, Source.LEDGER})
            coverage = replace(EVERYTHING, compared=compared, first_entry=first_entry)
            assert (not lacks_entries, lacks_entries) == judged(facts, PROGRAMMES, coverage)[:2]


@pytest.mark.parametrize(
    ("bought", "is_recorded"),
    [
        ([], False),
        ([Purchase(START + 1, "I1", Decimal(100))], False),
        ([Purchase(START + 1, "I1", Decimal(100))], True),
    ],
    ids=["unknown card", "new account", "known account"],
)
def test_a_waiting_erasure_does_not_show_lost_entries(bought, is_recorded):
    """The topic was created again, and the ledger is complete. The last events came while the pipeline stood."""
    facts = facts_of(processed([bought], PROGRAMMES)) if is_recorded else Facts(bought.copy())
    facts.events.append(Erase(append_time=START + 2, command_id="C1"))
    compared = frozenset({Source.LOYALTY, Source.LEDGER})
    coverage = replace(EVERYTHING, compared=compared, first_entry=EVERYTHING.now)
    assert (True, False, []) == judged(facts, PROGRAMMES, coverage)


def judged(facts, programmes, coverage):
    result, _ = compare(CARD, facts, programmes, coverage, pseudonymize)
    return result.recomputed, result.lacks_entries, result.differences


@pytest.mark.parametrize(
    ("topic_from", "differences"),
    [(START + 3, []), (START + 2, [(Source.LOYALTY, "entries 3 to 4 are missing", False)])],
)
def test_only_retention_may_delete_entries(topic_from, differences):
    """The ledger lacks the entries 3 and 4, too. If the topic must still have them, that is a difference."""
    history = processed([[Purchase(START + n, f"I{n}", Decimal(100))] for n in range(1, 6)], PROGRAMMES)
    facts = facts_of(history)
    for entries in facts.recorded.values():
        del entries[2:4]
    assert (False, True, differences) == judged(facts, PROGRAMMES, replace(EVERYTHING, topic_from=topic_from))


def test_a_balance_that_is_newer_than_the_entries_does_not_show_lost_entries(facts):
    """An interrupted micro-batch has written the balance, but not its entry. The topic has deleted nothing."""
    facts.recorded = {source: entries[:2] for source, entries in facts.recorded.items()}
    facts.state = None
    coverage = replace(EVERYTHING, compared=frozenset({Source.LOYALTY, Source.LEDGER}), topic_from=START + 3)
    assert (True, False, []) == judged(facts, PROGRAMMES, coverage)
    coverage = replace(coverage, topic_from=START + 4)
    assert (False, True, []) == judged(facts, PROGRAMMES, coverage)


@pytest.mark.parametrize(("balance_of", "is_recomputed"), [(2, True), (3, False)])
def test_an_account_without_entries_needs_all_events_of_its_balance(facts, three, balance_of, is_recomputed):
    """Retention has deleted all entries and the first events. The events that are left do not give the balance."""
    facts.recorded, facts.state = {}, None
    facts.balance = balance(three.entries[balance_of - 1])
    facts.events = facts.events[:2]
    coverage = replace(
        EVERYTHING,
        compared=frozenset({Source.LOYALTY}),
        topic_from=EVERYTHING.now,
        events_from=START + 1,
        record_from=EVERYTHING.now,
    )
    assert is_recomputed == judged(facts, PROGRAMMES, coverage)[0]


def test_an_entry_without_an_event_is_found_although_entries_are_missing(facts, three):
    """A forged entry has a sequence number that is too high. The events show that it has none."""
    facts.recorded[Source.LEDGER].append(replace(three.entries[-1], sequence=9, event_id="forged"))
    coverage = replace(EVERYTHING, topic_from=START + 99)
    what = "no such event: forged, of the recorded entry 9"
    assert (False, True) == judged(facts, PROGRAMMES, coverage)[:2]
    assert (Source.EVENT, what, False) in found(facts, coverage=coverage)


def test_an_exchange_in_an_older_checkpoint_is_no_difference():
    """The checkpoint does not say that the return is the half of an exchange. Only an account without the other half
    needs that.
    """
    bought = Purchase(START + 1, "I1", Decimal(100), lines=(Line("sofa", Decimal(100)),))
    lines = (Line("sofa", Decimal(-100)), Line("bed", Decimal(150)))
    exchanged = Purchase(START + 2, "I2", Decimal(50), original_invoice_number="I1", lines=lines)
    facts = facts_of(processed([[bought], [exchanged]], PROGRAMMES))
    facts.state.returns["I2"] = facts.state.returns["I2"]._replace(is_half=False)
    assert [] == found(facts, coverage=replace(EVERYTHING, now=START + 3))


def test_what_release_0_1_did_not_keep_is_no_difference():
    """Its accounts have no items, and keep returns as purchases of 0. Its entries give no reason of a return."""
    bought = Purchase(START, "I1", Decimal(100), lines=(Line("sofa", Decimal(100)),))
    returned = Purchase(
        START + 1, "I2", Decimal(-40), original_invoice_number="I1", lines=(Line("sofa", Decimal(-40)),)
    )
    unknown = Purchase(START + 2, "I3", Decimal(-40), original_invoice_number="I0")
    facts = facts_of(processed([[bought], [returned], [unknown]], PROGRAMMES))
    for entries in facts.recorded.values():
        entries[:] = [replace(entry, reason="") for entry in entries]
    state = facts.state
    facts.state = replace(
        state,
        purchases={number: past._replace(items=None) for number, past in state.purchases.items()}
        | {number: PastPurchase(past.append_time, Decimal(0), 0, 0) for number, past in state.returns.items()},
        returns={},
    )

    soon = replace(EVERYTHING, now=START + DAY)
    assert [] == found(facts, coverage=soon)
    facts.state.purchases["I1"] = facts.state.purchases["I1"]._replace(earned=1)
    assert [Source.STATE] == [each.where for each in found(facts, coverage=soon)]


def test_the_start_of_a_period_of_release_0_1_is_no_difference():
    """Release 0.1 kept the start of the calendar's period, and not the time of the first purchase that counted."""
    programmes = Programmes((Programme(tier_period=Period.YEAR, tiers=(Tier("silver", 1_00),)),))
    facts = facts_of(processed([[Purchase(START, "I1", Decimal(100))]], programmes))
    soon = replace(EVERYTHING, now=START + 1)
    facts.state = replace(facts.state, period_start=START - 1)
    assert [] == found(facts, programmes, soon)

    facts.state = replace(facts.state, period_start=START + 1)
    assert [Source.STATE] == [each.where for each in found(facts, programmes, soon)]


def test_a_doubled_entry_is_found(facts, three):
    """A second copy of an entry under the next sequence number is one too many."""
    again = replace(three.entries[-1], sequence=4, total=800, available=800)
    facts.recorded[Source.LOYALTY].append(again)

    (difference,) = found(facts)

    assert (Source.LOYALTY, "entry 4 (earned 2.00) is one too many", False) == difference


def test_two_entries_of_one_sequence_are_found(facts, three):
    """Two different entries with one sequence number are a difference. Two equal ones are not."""
    facts.recorded[Source.LOYALTY] += [three.entries[1], replace(three.entries[1], reason="forged")]

    assert ["there are two different entries 2"] == [difference.what for difference in found(facts)]


def test_a_missing_row_of_the_ledger_is_found(facts, three):
    """A missing row in the middle is a difference. Missing rows at the end may settle."""
    del facts.recorded[Source.LEDGER][1:]
    assert [(Source.LEDGER, True)] * 2 == [(each.where, each.settles) for each in found(facts)]

    facts.recorded[Source.LEDGER].append(three.entries[2])
    assert [(Source.LEDGER, "entry 2 (earned 2.00) is missing", False)] == found(facts)


def test_a_purchase_that_was_not_processed_is_found(facts):
    """The audit names an invoice without an entry."""
    facts.events.append(Purchase(START + 4, "I4", Decimal(5)))

    assert [(Source.EVENT, "not processed: I4", False)] == found(facts)


def test_a_wrong_balance_is_found(facts, three):
    """The audit names a served balance with wrong points. An older balance may settle."""
    facts.balance = {**facts.balance, "TotalLoyaltyPoints": "99.00"}
    assert [(Source.BALANCE, "of sequence 3: TotalLoyaltyPoints is 99.00 and should be 6.00", False)] == found(facts)

    facts.balance = balance(three.entries[1])
    assert [(Source.BALANCE, "is that of sequence 2, not 3", True)] == found(facts)

    facts.balance = None
    assert [(Source.BALANCE, "there is no balance, but entry 3", True)] == found(facts)


def test_a_wrong_expiry_is_found_unless_the_balance_is_older_than_the_field(facts, three):
    """Balances of release 0.1 do not show the next expiry and the block. Without events, no source has them."""
    facts.balance = {**facts.balance, "NextExpiryPoints": "1.00", "Blocked": True}
    (difference,) = found(facts)
    assert "of sequence 3: NextExpiryPoints is 1.00 and should be 0.00, Blocked is True and should be False" == (
        difference.what
    )

    facts.balance = {name: value for name, value in balance(three.entries[-1]).items() if name not in STANDING}
    assert [] == found(facts)
    facts.balance = balance(three.entries[-1])
    facts.events = []
    assert (False, False, []) == judged(facts, PROGRAMMES, replace(EVERYTHING, events_from=START + 99))


def test_the_state_of_release_0_1_lacks_purchases_whose_window_is_over():
    """It forgot them at once. A younger purchase must not be missing."""
    old, young = Purchase(START, "old", Decimal(100)), Purchase(START + 50 * DAY, "young", Decimal(100))
    history = processed(
        [[old], [young], [replace(young, append_time=START + 95 * DAY, invoice_number="new")]], PROGRAMMES
    )
    facts, coverage = facts_of(history), replace(EVERYTHING, now=START + 96 * DAY)
    purchases = facts.state.purchases
    assert "old" in purchases

    facts.state = replace(facts.state, purchases={each: purchases[each] for each in ("young", "new")})
    assert [] == found(facts, coverage=coverage)
    facts.state = replace(facts.state, purchases={"new": purchases["new"]})
    assert [Source.STATE] == [each.where for each in found(facts, coverage=coverage)]


@pytest.mark.parametrize(("number", "names"), [(1, "P0"), (3, "P0, P1, P2"), (5, "P0, P1, P2 and 2 more")])
def test_a_difference_names_invoices_without_their_baskets(facts, number, names):
    """The topic audit-runs keeps the text, and an erasure does not reach it."""
    facts.state = facts.state.copy()
    bought = PastPurchase(START, Decimal(1), 2, 0, items={"sofa": Decimal(1)})
    facts.state.purchases |= {f"P{each}": bought for each in reversed(range(number))}
    (difference,) = found(facts, coverage=replace(EVERYTHING, now=START + DAY))
    assert (Source.STATE, f"at sequence 3: purchases differs at {names}", False) == difference


def test_no_difference_shows_a_card(facts):
    """The topic audit-runs keeps the text, and an erasure does not reach it."""
    facts.state = replace(facts.state, moved_to="CARD17", former_cards=("CARD18",))
    facts.balance = {**facts.balance, "CustomerCardNo": "CARD19", "MovedTo": "CARD20"}
    assert [
        "of sequence 3: CustomerCardNo differs, MovedTo differs",
        "at sequence 3: moved_to differs, former_cards differs",
    ] == [each.what for each in found(facts)]


def test_a_difference_in_lots_says_how_many_points_are_wrong(facts):
    expected = facts.state.lots
    wrong = {terms: points + 1 for terms, points in expected.items()}
    facts.state = replace(facts.state, lots=wrong)
    (difference,) = found(facts, coverage=replace(EVERYTHING, now=START + DAY))
    assert f"at sequence 3: lots is {wrong} and should be {expected}" == difference.what


def test_a_wrong_state_is_found(facts, three):
    """The audit names wrong fields of Spark's account. An account with another sequence number may settle, and so may
    that of another opening.
    """
    facts.state = three.account.copy()
    facts.state.debt = 1
    assert [(Source.STATE, "at sequence 3: debt is 0.01 and should be 0.00", False)] == found(facts)

    facts.state.sequence = 2
    assert [(Source.STATE, "has sequence 2, not 3", True)] == found(facts)

    facts.state = replace(three.account, opened_time=START)
    opened = "the account that was opened at"
    expected = f"has sequence 3 of {opened} {short_time_text(START)}, not 3 of {opened} {short_time_text(START + 1)}"
    assert [(Source.STATE, expected, True)] == found(facts)


def test_a_timer_that_has_not_run_is_found():
    """The audit finds a release that is overdue, but only after its time."""
    programmes = Programmes((Programme(pending=DAY),))
    history = processed([[Purchase(START, "I1", Decimal(100))]], programmes)
    facts = facts_of(history)

    assert [] == found(facts, programmes, replace(EVERYTHING, timers_until=START + DAY - 1))
    (difference,) = found(facts, programmes, replace(EVERYTHING, timers_until=START + DAY))
    assert "a timer that was due at 2026-09-22T14:13:20Z has not run" == difference.what


@pytest.mark.parametrize(
    ("actor", "hidden_actor"), [(CARD, f"p-{CARD}"), (f"token:{CARD}", f"p-{CARD}"), ("token:anna", "token:")]
)
def test_the_ledger_may_have_pseudonyms(actor, hidden_actor):
    """Pseudonyms and missing texts of an erased card are no difference. Other amounts are."""
    gift = Transfer(append_time=START + 9, command_id="C1", points=50, counterparty="4712", reason="words", actor=actor)
    history = processed([[Purchase(START + 1, "I1", Decimal(100)), gift]], PROGRAMMES)
    facts = facts_of(history)
    hidden = {"counterparty": "p-4712", "reason": "", "actor": hidden_actor}
    facts.recorded[Source.LEDGER][-1] = replace(history.entries[-1], **hidden)
    assert [] == found(facts)

    facts.recorded[Source.LEDGER][-1] = replace(history.entries[-1], **hidden, points=-40)
    assert [(Source.LEDGER, "entry 2: points is -0.40 and should be -0.50", False)] == found(facts)


@pytest.mark.parametrize("events", [[], [Erase(append_time=START + 3, command_id="C3")]])
def test_the_ledger_lacks_reasons_and_actors_of_erased_customers_only(events):
    """Somebody who removes them from the entries of a live account hides who gave points, and why."""
    given = {"points": 50, "reason": "gift", "actor": "token:clerk"}
    adjusted = [Adjust(append_time=START + number, command_id=f"C{number}", **given) for number in (1, 2)]
    facts = facts_of(processed([[*adjusted, *events]], PROGRAMMES))
    facts.recorded[Source.LEDGER][:2] = [
        replace(entry, reason="", actor="token:") for entry in facts.recorded[Source.LEDGER][:2]
    ]
    wrong = [] if events else [f"entry {number}: reason differs, actor differs" for number in (1, 2)]
    assert wrong == [each.what for each in found(facts)]


def test_an_archive_has_no_reasons_and_no_actors():
    """The entries of archived events still have them, and that is no difference. A wrong actor of an event from a topic
    is found.
    """
    gift = Transfer(append_time=START + 9, command_id="C1", points=50, counterparty="4712", reason="a gift", actor="me")
    refused = replace(gift, append_time=START + 10, command_id="C2", points=10_000)
    history = processed([[Purchase(START + 1, "I1", Decimal(100)), gift, refused]], PROGRAMMES)
    facts = facts_of(history)
    facts.events = [
        replace(event, reason="", actor=ARCHIVED) if isinstance(event, Transfer) else event for event in facts.events
    ]
    assert [] == found(facts)

    for actor in ("me", ""):
        history = processed([[Purchase(START + 1, "I1", Decimal(100)), replace(gift, actor=actor)]], PROGRAMMES)
        facts = facts_of(history)
        facts.recorded[Source.LEDGER][1] = replace(history.entries[1], actor="you")
        assert ["entry 2: actor differs"] == [each.what for each in found(facts)]


def test_an_archive_and_a_ledger_without_a_card_do_not_hide_that_an_erasure_names_it():
    """The customer is erased today, long after the replacement of the card. The account sends no second erasure."""
    moved = Replace(append_time=START + 2, command_id="C1", counterparty="4712")
    erased = Erase(append_time=START + 3, command_id="C2/0/card", counterparty="4712")
    history = processed([[Purchase(START + 1, "I1", Decimal(100)), moved, erased]], PROGRAMMES)
    facts = facts_of(history)
    facts.events[1] = replace(moved, counterparty="p-4712")
    facts.recorded[Source.LOYALTY] = history.entries[2:]
    facts.recorded[Source.LEDGER] = [
        replace(each, counterparty=each.counterparty and pseudonymize(each.counterparty)) for each in history.entries
    ]
    coverage = replace(EVERYTHING, topic_from=START + 3)

    result, recomputed = compare(CARD, facts, PROGRAMMES, coverage, pseudonymize)

    assert ["C1/0/moved"] == history.sent == recomputed.settled.sent
    assert [] == result.differences


def test_an_archive_has_no_card_of_an_unreadable_account():
    """The archive has a pseudonym where the entries of the account have the card. That is no difference."""
    moved = Replace(append_time=START + 2, command_id="C1", counterparty="4712")
    back = Unreadable(append_time=START + 3, command_id="C2", counterparty="4712", payload=b"?")
    late = Purchase(START + 4, "I2", Decimal(100))
    facts = facts_of(processed([[Purchase(START + 1, "I1", Decimal(100)), moved, back, late]], PROGRAMMES))
    facts.events = [replace(event, counterparty="p-4712") if event is back else event for event in facts.events]
    assert [] == found(facts)


def test_sums_that_no_double_has_are_no_difference():
    """The till computes 3 * 1.1 in doubles. The record of an exchange has the sum of its lines as a double, too."""
    lines = (Line("a", Decimal(-50)), Line("b", Decimal(repr(3 * 1.1))), Line("c", Decimal("59.9")))
    purchase = Purchase(START + 1, "I1", Decimal(100))
    exchange = Purchase(START + 2, "I2", Decimal("13.2"), original_invoice_number="I1", lines=lines)
    history = processed([[purchase, exchange]], PROGRAMMES)
    facts = facts_of(history)
    facts.recorded = {
        source: [entry_from_notification(notification_record(CARD, entry)) for entry in entries]
        for source, entries in facts.recorded.items()
    }
    assert [] == found(facts)


def test_accounts_without_their_old_events_are_not_recomputed(facts):
    """The audit then compares the sources with each other."""
    facts.events = facts.events[2:]
    gone = replace(EVERYTHING, events_from=START + 3)

    assert (False, False, []) == judged(facts, PROGRAMMES, gone)

    facts.balance = {**facts.balance, "TotalLoyaltyPoints": "99.00"}
    assert [Source.BALANCE] == [each.where for each in found(facts, coverage=gone)]


@pytest.mark.parametrize("later", [[], [Purchase(START + 20 * DAY, "I5", Decimal(100))]])
@pytest.mark.parametrize(
    "deleted",
    [
        [
            Reserve(append_time=START + 3, command_id="r", points=9_000),
            Capture(append_time=START + 4, command_id="c", redemption_id="r"),
        ],
        [Erase(append_time=START + 3, command_id="e")],
        [Erase(append_time=START + 3, command_id="e"), Purchase(START + 4, "I3", Decimal(100))],
    ],
    ids=["redeemed", "erased", "opened again"],
)
@pytest.mark.parametrize("events_from", [0, START + 10 * DAY])
def test_an_entry_that_was_sent_again_changes_nothing_without_a_ledger(events_from, deleted, later):
    """A replay of a webhook's dead letter brings the entry back after Kafka has deleted the entries after it."""
    before = [Purchase(START + 1, "I1", Decimal(100)), Purchase(START + 2, "I2", Decimal(5_000))]
    history = processed([[event] for event in (*before, *deleted, *later)], PROGRAMMES)
    facts = facts_of(history)
    facts.events = [event for event in facts.events if event.append_time >= events_from]
    recent = [entry for entry in history.entries if entry.time >= START + 10 * DAY]
    coverage = Coverage(
        frozenset(Source) - {Source.LEDGER}, events_from, START + 10 * DAY, START + 10 * DAY, START + 21 * DAY
    )
    results = []
    for repeated in ([], [history.entries[1]]):
        facts.recorded = {Source.LOYALTY: [*recent, *repeated]}
        results.append(compare(CARD, facts, PROGRAMMES, coverage, pseudonymize))
    assert results[0] == results[1]


def test_totals_of_entries_with_a_gap_between_them_are_no_difference(facts, three):
    """Without the ledger, the topic has an entry that was sent again to a webhook, and the newest entries."""
    facts.recorded = {Source.LOYALTY: [three.entries[0], three.entries[2]]}
    facts.events = facts.events[2:]
    since = START + 3
    coverage = replace(EVERYTHING, events_from=since, record_from=since, topic_from=since)
    coverage = replace(coverage, compared=EVERYTHING.compared - {Source.LEDGER})
    assert [] == found(facts, coverage=coverage)

    facts.recorded[Source.LOYALTY].insert(1, replace(three.entries[1], total=500))
    wrong = ["entry 2 has the total 5.00", "entry 3 has the total 6.00"]
    assert wrong == [each.what.partition(",")[0] for each in found(facts, coverage=coverage)]


@pytest.mark.parametrize("source", [Source.LOYALTY, Source.LEDGER])
def test_a_source_that_could_not_be_read_is_not_compared(facts, source):
    """A source that is not compared may lack all entries."""
    facts.recorded[source] = []

    assert [] == found(facts, coverage=replace(EVERYTHING, compared=EVERYTHING.compared - {source}))


def test_an_account_that_only_one_side_has_is_found(facts):
    """Entries without an account in Spark's state, and an account without entries, are differences that may settle."""
    state, facts.state = facts.state, None
    assert [(Source.STATE, "there is no account", True)] == found(facts)
    assert [(Source.STATE, "there is an account, of sequence 3", True)] == found(Facts(state=state))


@pytest.mark.parametrize("number", [0, 1])
def test_a_balance_of_an_erased_account_is_found(number):
    """Also a balance that only has the sequence of the erasure. It may settle."""
    events = [[Purchase(START, "I1", Decimal(100))], [Erase(append_time=START + 1, command_id="C1")]]
    history = processed(events, PROGRAMMES)
    facts = facts_of(history)
    facts.balance = balance(history.entries[number])
    assert [(Source.BALANCE, f"has sequence {number + 1}, but entry 2 erased the account", True)] == found(facts)


def test_a_balance_of_the_account_before_an_erasure_is_found():
    """The next account of the card has the same sequence number. The difference may settle."""
    events = [Purchase(START, "I1", Decimal(100)), Erase(append_time=START + 1, command_id="C1")]
    history = processed([[*events, Purchase(START + 2, "I2", Decimal(100))]], PROGRAMMES)
    facts = facts_of(history)
    facts.balance = balance(history.entries[0])
    opened = "the account that was opened at"
    expected = (
        f"is that of sequence 1 of {opened} {short_time_text(START)}, not 1 of {opened} {short_time_text(START + 2)}"
    )
    assert [(Source.BALANCE, expected, True)] == found(facts)


@pytest.mark.parametrize("lost", [1, 2])
def test_without_a_ledger_a_lost_entry_is_found(facts, lost):
    """The sources have all events, so no retention explains the loss."""
    entries = facts.recorded[Source.LOYALTY]
    facts.recorded = {Source.LOYALTY: [each for each in entries if each.sequence != lost]}
    coverage = replace(EVERYTHING, compared=frozenset(Source) - {Source.LEDGER})
    not_processed = [each.what for each in found(facts, coverage=coverage) if each.where is Source.EVENT]
    assert [f"not processed: I{lost}"] == not_processed


@pytest.mark.parametrize(
    ("where", "actor", "field", "forged"),
    [
        (Source.LOYALTY, "token:clerk", "reason", ""),
        (Source.LOYALTY, "token:clerk", "actor", "token:"),
        (Source.LEDGER, "token:clerk", "actor", "token:other"),
        (Source.LEDGER, "clerk", "actor", "token:"),
    ],
)
def test_other_changes_of_the_entries_of_an_erased_customer_are_found(where, actor, field, forged):
    """Only the ledger lacks texts, and only the subject of a token is removed."""
    adjusted = Adjust(append_time=START + 1, command_id="C1", points=50, reason="gift", actor=actor)
    facts = facts_of(processed([[adjusted, Erase(append_time=START + 2, command_id="C2")]], PROGRAMMES))
    facts.recorded[where][0] = replace(facts.recorded[where][0], **{field: forged})
    assert [(where, f"entry 1: {field} differs", False)] == found(facts)
