"""The ledger and the archive hide cards and texts. The audit accepts no other change of them."""

from dataclasses import replace
from decimal import Decimal

import pytest

from services.audit.comparison import compare
from services.audit.facts import Source
from services.codecs.events import ARCHIVED
from services.domain.events import Adjust, Erase, Purchase, Replace, Transfer, Unreadable
from tests.support.account_histories import CARD, START, processed
from tests.unit.services.audit.facts_and_differences import EVERYTHING, PROGRAMMES, facts_of, found, pseudonymize


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
