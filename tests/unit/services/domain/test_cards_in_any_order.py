"""Cards that are replaced, and all kinds of events in random orders. No point is lost, and none counts twice."""

from collections import defaultdict, deque
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from schemas.topics import LOYALTY_COMMANDS
from services.codecs.events import command_record, credit_record, decode_event
from services.domain.account.processor import process
from services.domain.events import Adjust, Capture, Forward, Purchase, Replace, Reserve, Transfer, Void
from services.domain.programme import Programme, Programmes, SpentReturns
from services.domain.recomputation import recompute
from services.messaging.avro import encoder
from tests.support.builders import IDS

PROGRAMMES = Programmes((Programme(spent_returns=SpentReturns.NEGATIVE_ALLOWED),))
"""A debt is part of a total, so the sum of all totals is exact."""

encode = encoder(LOYALTY_COMMANDS, IDS)


class Query:
    """The accounts, and for each card the commands that the query has not read yet, in their order."""

    def __init__(self):
        self.states, self.decisions, self.now = {}, {}, 0
        self.events, self.entries, self.commands = defaultdict(list), defaultdict(list), defaultdict(deque)

    def read(self, card, event):
        self.now += 1
        event = replace(event, append_time=self.now)
        outcome = process(self.states.get(card), [event], PROGRAMMES, card)
        self.states[card] = outcome.state
        self.events[card].append(event)
        self.entries[card] += outcome.entries
        self.decisions |= {decision.command_id: decision for decision in outcome.decisions}
        sent = [(credit.to_card, credit_record(card, credit)) for credit in outcome.credits]
        sent += [(to_card, command_record(to_card, command)) for to_card, command in outcome.commands]
        for to_card, record in sent:
            self.commands[to_card].append(decode_event(self.now, encode(record)))

    def waiting(self):
        return [card for card, commands in self.commands.items() if commands]

    def read_command(self, card):
        self.read(card, self.commands[card].popleft())


def events_of(cards, random):
    """Events of random cards. The last of the list is read first, so a capture comes after its reservation.

    A return comes with any card, and the index of invoices forwards it to the card that bought.
    """

    def command(kind, name, **fields):
        return kind(append_time=0, command_id=name, **fields)

    def any_card():
        return random.choice(cards)

    events = [(old, command(Replace, f"replace {old}", counterparty=new)) for old, new in pairwise(cards[:-1])]
    events += [(any_card(), bought(f"late {number}")) for number in range(3)]
    for number in range(2):
        sender, receiver = random.sample(cards, 2)
        points = random.choice([1_00, 7_00])
        events.append((sender, command(Transfer, f"transfer {number}", points=points, counterparty=receiver)))
    events.append((any_card(), command(Adjust, "adjust", points=random.choice([2_50, -2_50]))))
    for buyer in random.sample(cards, 2):
        returned = replace(bought(f"return of {buyer}"), total_amount=Decimal(-200), original_invoice_number=buyer)
        events += [(any_card(), returned), (buyer, command(Forward, f"forward {buyer}", invoice=returned))]
    random.shuffle(events)
    for number in range(2):
        card, name, end = any_card(), f"reserve {number}", random.choice([Capture, Void])
        first, last = sorted(random.sample(range(len(events)), 2))
        events.insert(last, (card, command(Reserve, name, points=4_00)))
        events.insert(first, (card, command(end, f"end {number}", redemption_id=name)))
    return events


def bought(number):
    """It earns 10.00 points."""
    return Purchase(0, number, Decimal(500))


@given(st.integers(0, 3), st.randoms(use_true_random=False))
def test_no_point_is_lost_between_cards(replacements, random):
    """Each of the cards replaces the one before, except the last, which is of another customer.

    The audit computes the same entries from the same events, and finds no event that is not processed.
    """
    query, cards = Query(), [f"card {number}" for number in range(replacements + 2)]
    for card in cards:
        query.read(card, bought(card))
    events = events_of(cards, random)
    asked = {event.command_id for _, event in events if not isinstance(event, Purchase | Forward)}
    while events or query.waiting():
        if events and (not query.waiting() or random.random() < 0.4):
            query.read(*events.pop())
        else:
            query.read_command(random.choice(query.waiting()))

    done = [each for each in query.decisions.values() if each.refusal is None and each.kind in ("capture", "adjust")]
    expected = 10_00 * (len(cards) + 3) - 2 * 4_00 + sum(each.points for each in done)
    assert expected == sum(each.total for each in query.states.values())
    assert asked == query.decisions.keys()
    for card in cards:
        recomputed = recompute(card, query.events[card], query.entries[card], PROGRAMMES)
        assert query.entries[card] == recomputed.settled.entries
        assert ([], []) == (recomputed.not_processed, recomputed.late.entries)
