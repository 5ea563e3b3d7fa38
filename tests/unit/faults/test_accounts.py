"""The auditor's accounts agree with the domain, and the auditor reports every difference."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.demo.comparison import Balance, Nature
from services.codecs.events import command_record
from services.codecs.records import decision_record, notification_record
from services.domain.account.processor import process
from services.domain.events import Adjust, Capture, Purchase, Receive, Reserve, Transfer, Void
from services.domain.programme import Programmes
from tests.faults.accounts import Answer, AuditInput, AuditOutput, mismatches

CARDS = st.sampled_from(["A", "B"])
POINTS = st.integers(1, 2_000)
IDS = st.integers(0, 9).map("C{}".format)
COMMAND = {"append_time": st.just(0), "command_id": IDS}
EVENTS = st.one_of(
    st.builds(Purchase, st.just(0), st.integers(0, 9).map("I{}".format), POINTS.map(Decimal)),
    st.builds(Reserve, **COMMAND, points=POINTS),
    st.builds(Capture, **COMMAND, redemption_id=IDS),
    st.builds(Void, **COMMAND, redemption_id=IDS),
    st.builds(Adjust, **COMMAND, points=POINTS | POINTS.map(int.__neg__), allow_negative=st.booleans()),
    st.builds(Transfer, **COMMAND, points=POINTS, counterparty=CARDS),
)


@dataclass
class Played:
    """Input records, and the output records of the domain."""

    earned: dict = field(default_factory=lambda: defaultdict(dict))
    commands: list = field(default_factory=list)
    entries: list = field(default_factory=list)
    decisions: list = field(default_factory=list)
    answers: list = field(default_factory=list)

    def found(self):
        last = {entry["CustomerCardNo"]: entry for entry in self.entries}
        served = {card: Balance(entry["TotalLoyaltyPoints"], entry["Sequence"]) for card, entry in last.items()}
        return mismatches(
            AuditInput(self.earned, self.commands), AuditOutput(self.entries, self.decisions, served, self.answers)
        )


def played(*steps):
    """Process events of cards in order, without duplicates."""
    story, accounts, taken, waiting = Played(), {}, set(), list(steps)
    while waiting:
        card, event = waiting.pop(0)
        if event.event_id in taken:
            continue
        taken.add(event.event_id)
        if isinstance(event, Purchase):
            story.earned[card][event.invoice_number] = event.total_amount / 50
        else:
            story.commands.append(command_record(card, event))
        outcome = process(accounts.get(card), [replace(event, append_time=len(taken))], Programmes(), card)
        accounts[card] = outcome.account
        story.entries += [notification_record(card, each) for each in outcome.entries]
        story.decisions += [decision_record(card, each) for each in outcome.decisions]
        waiting += [
            (each.to_card, Receive(append_time=0, command_id=each.command_id, counterparty=card, lots=each.lots))
            for each in outcome.credits
        ]
    return story


@given(st.lists(st.tuples(CARDS, EVENTS), max_size=16))
def test_the_domain_and_the_auditor_agree(steps):
    """The auditor finds no difference for any commands, valid or not."""
    assert [] == played(*steps).found()


def a_day():
    """Earn 10, redeem 4, transfer 3, and have 9 refused."""
    story = played(
        ("A", Purchase(0, "I1", Decimal(500))),
        ("A", Reserve(append_time=0, command_id="reserve", points=400)),
        ("A", Capture(append_time=0, command_id="capture", redemption_id="reserve")),
        ("A", Transfer(append_time=0, command_id="gift", points=300, counterparty="B")),
        ("A", Reserve(append_time=0, command_id="too-much", points=900)),
    )
    for decision in story.decisions:
        body = {**decision, "TotalLoyaltyPoints": str(decision["TotalLoyaltyPoints"])}
        story.answers.append(Answer(409 if decision["Status"] == "refused" else 201, body))
    return story


def the(records, name):
    return next(each for each in records if name in (each.get("EventID"), each.get("CommandID")))


def more(entry):
    """The same entry again, with the effect of a second event."""
    return {**entry, "Sequence": entry["Sequence"] + 1, "TotalLoyaltyPoints": entry["TotalLoyaltyPoints"] - 4}


WRONGS = {
    "an entry is missing": (Nature.LOST, lambda day: day.entries.remove(the(day.entries, "capture"))),
    "an invoice has no entry": (Nature.LOST, lambda day: day.entries.remove(the(day.entries, "I1"))),
    "what was sent is on no way": (Nature.LOST, lambda day: day.commands.remove(the(day.commands, "gift/in"))),
    "what was sent did not arrive": (Nature.LOST, lambda day: day.entries.remove(the(day.entries, "gift/in"))),
    "a decision is missing": (Nature.LOST, lambda day: day.decisions.remove(the(day.decisions, "reserve"))),
    "an answer without a decision": (Nature.LOST, lambda day: day.answers.append(Answer(201, {"CommandID": "who"}))),
    "a capture counts twice": (Nature.DOUBLED, lambda day: day.entries.append(more(the(day.entries, "capture")))),
    "decided again, otherwise": (
        Nature.DOUBLED,
        lambda day: day.decisions.append({**the(day.decisions, "too-much"), "Status": "done"}),
    ),
    "an entry of nothing": (
        Nature.DOUBLED,
        lambda day: day.entries.append({**the(day.entries, "gift"), "Kind": "adjusted", "EventID": "made up"}),
    ),
    "a total that no prefix gives": (Nature.WRONG, lambda day: the(day.entries, "gift").update(TotalLoyaltyPoints=4)),
    "a gap in the sequence": (Nature.WRONG, lambda day: the(day.entries, "too-much").update(Sequence=7)),
    "more spent than was there": (
        Nature.WRONG,
        lambda day: the(day.entries, "too-much").update(Kind="reserved", ReservedLoyaltyPoints=9),
    ),
    "the decision says another sequence": (
        Nature.WRONG,
        lambda day: the(day.decisions, "gift").update(AccountSequence=1),
    ),
    "told done, and was refused": (
        Nature.WRONG,
        lambda day: day.answers.append(Answer(201, {**day.answers[-1].body, "Status": "done"})),
    ),
    "one id, two commands": (
        Nature.WRONG,
        lambda day: day.commands.append({**the(day.commands, "gift"), "Points": Decimal(1)}),
    ),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_each_error_is_reported(wrong):
    """The auditor finds each kind of error and gives its right nature."""
    nature, spoil = WRONGS[wrong]
    day = a_day()
    assert [] == day.found()

    spoil(day)

    assert nature in {each.nature for each in day.found()}
