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
from services.domain.events import Adjust, Capture, Purchase, Replace, Reserve, Transfer, Void
from services.domain.invoice_index import Bought, IndexedInvoice, Returned, apply_news
from services.domain.programme import Programme, Programmes, SpentReturns
from services.domain.recomputation import recompute
from services.domain.returns import InvoiceKind
from services.messaging.avro import encoder
from tests.support.builders import IDS
from tests.support.loyalty_stream import forward
from tests.support.return_histories import RETURN_HISTORIES, expected_total, many

PROGRAMMES = Programmes((Programme(spent_returns=SpentReturns.NEGATIVE_ALLOWED),))
"""A debt is part of a total, so the sum of all totals is exact."""

CARDS = st.integers(2, 5).map(lambda number: [f"card {position}" for position in range(number)])

encode = encoder(LOYALTY_COMMANDS, IDS)


class Query:
    """The accounts, the index of invoices, and the commands that wait for each card, in their order."""

    def __init__(self, cards):
        self.states, self.decisions, self.now = {}, {}, 0
        self.index = defaultdict(IndexedInvoice)
        self.events, self.entries, self.commands = defaultdict(list), defaultdict(list), defaultdict(deque)
        for card in cards:
            self.read_invoice(card, bought(card))

    def read(self, card, event):
        self.now += 1
        event = replace(event, append_time=self.now)
        outcome = process(self.states.get(card), [event], PROGRAMMES, card)
        self.states[card] = outcome.state
        self.events[card].append(event)
        self.entries[card] += outcome.entries
        self.decisions |= {decision.command_id: decision for decision in outcome.decisions}
        for credit in outcome.credits:
            self.send(credit.to_card, credit_record(card, credit))
        for to_card, command in outcome.commands:
            self.send(to_card, command_record(to_card, command))

    def send(self, card, record):
        self.commands[card].append(decode_event(self.now, encode(record)))

    def read_invoice(self, card, invoice):
        """The account and the index read an invoice in the same micro-batch. A return can have no card."""
        time, original = self.now + 1, invoice.original_invoice_number
        news = defaultdict(list)
        if card:
            news[invoice.invoice_number].append(Bought(time, card))
        if original:
            news[original].append(Returned(time, card, replace(invoice, append_time=time)))
        outcomes = {number: apply_news(self.index[number], about) for number, about in news.items()}
        self.index |= {number: outcome.invoice for number, outcome in outcomes.items()}
        if card:
            self.read(card, invoice)
        for outcome in outcomes.values():
            for to_card, returned in outcome.forwarded:
                self.send(to_card, command_record(to_card, forward(returned.invoice)))

    def read_in_any_order(self, events, random):
        """Read events from the end of the list. In between, read commands to random cards."""
        while events or any(self.commands.values()):
            waiting = [card for card, commands in self.commands.items() if commands]
            if waiting and (not events or random.random() < 0.6):
                card = random.choice(waiting)
                self.read(card, self.commands[card].popleft())
                continue
            card, event = events.pop()
            (self.read_invoice if isinstance(event, Purchase) else self.read)(card, event)

    def total(self):
        return sum(account.total for account in self.states.values())

    def assert_that_an_audit_finds_nothing(self):
        """It computes the same entries from the same events, and finds no event that is not processed."""
        for card, events in self.events.items():
            recomputed = recompute(card, events, self.entries[card], PROGRAMMES)
            assert self.entries[card] == recomputed.settled.entries
            assert ([], []) == (recomputed.not_processed, recomputed.late.entries)


def events_of(cards, random):
    """Events of random cards. The last of the list is read first, so a capture comes after its reservation."""

    def command(kind, name, **fields):
        return kind(append_time=0, command_id=name, **fields)

    def any_card():
        return random.choice(cards)

    events = replacements_of(cards)
    events += [(any_card(), bought(f"late {number}")) for number in range(3)]
    for number in range(2):
        sender, receiver = random.sample(cards, 2)
        points = random.choice([1_00, 7_00])
        events.append((sender, command(Transfer, f"transfer {number}", points=points, counterparty=receiver)))
    events.append((any_card(), command(Adjust, "adjust", points=random.choice([2_50, -2_50]))))
    for buyer in random.sample(cards, 2):
        returned = replace(bought(f"return of {buyer}"), total_amount=Decimal(-200), original_invoice_number=buyer)
        events.append((random.choice([*cards, ""]), returned))
    random.shuffle(events)
    for number in range(2):
        card, name, end = any_card(), f"reserve {number}", random.choice([Capture, Void])
        first, last = sorted(random.sample(range(len(events)), 2))
        events.insert(last, (card, command(Reserve, name, points=4_00)))
        events.insert(first, (card, command(end, f"end {number}", redemption_id=name)))
    return events


def replacements_of(cards):
    """Each card replaces the one before, except the last, which is of another customer."""
    return [
        (old, Replace(append_time=0, command_id=f"replace {old}", counterparty=new))
        for old, new in pairwise(cards[:-1])
    ]


def bought(number):
    """It earns 10.00 points."""
    return Purchase(0, number, Decimal(500))


def assert_that_no_point_is_lost(cards, events, random):
    """Read the events in any order. Then compare the sum of all totals, the decisions, and what an audit computes."""
    query = Query(cards)
    asked = {event.command_id for _, event in events if not isinstance(event, Purchase)}
    invoices = [event.total_amount for _, event in events if isinstance(event, Purchase)]
    query.read_in_any_order([*events], random)

    done = [each for each in query.decisions.values() if each.refusal is None and each.kind in ("capture", "adjust")]
    earned = 10_00 * len(cards) + 2 * int(sum(invoices))
    assert earned + sum(each.points for each in done) == query.total()
    assert asked == query.decisions.keys()
    query.assert_that_an_audit_finds_nothing()


@given(CARDS, st.randoms(use_true_random=False))
def test_no_point_is_lost_between_cards(cards, random):
    assert_that_no_point_is_lost(cards, events_of(cards, random), random)


@given(CARDS, st.randoms(use_true_random=False))
def test_no_point_is_lost_between_cards_that_replace_each_other_in_a_circle(cards, random):
    """Without returns: a return does not find its purchase if two cards have swapped their accounts."""
    events = [each for each in events_of(cards, random) if getattr(each[1], "original_invoice_number", None) is None]
    first, last = cards[0], cards[-2]
    replaced = Replace(append_time=0, command_id=f"replace {last}", counterparty=first)
    events.insert(random.randrange(len(events)), (last, replaced))
    assert_that_no_point_is_lost(cards, events, random)


@many
@given(RETURN_HISTORIES, CARDS, st.randoms(use_true_random=False))
def test_returns_and_exchanges_count_once_while_cards_are_replaced(invoices, cards, random):
    """The oracle knows no cards. Only a return without a sold half can have no card."""
    query = Query(cards)
    events = replacements_of(cards)
    for each in invoices:
        is_return = each.invoice_kind is InvoiceKind.RETURN
        events.append((random.choice([*cards, ""] if is_return else cards), each))
    random.shuffle(events)
    query.read_in_any_order(events, random)

    assert 10_00 * len(cards) + expected_total(invoices) == query.total()
    query.assert_that_an_audit_finds_nothing()
