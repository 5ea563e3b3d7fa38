"""Cards whose accounts can move: a stand-in for the loyalty query, and builders of events."""

from collections import defaultdict
from decimal import Decimal

from schemas.topics import LOYALTY_COMMANDS
from services.codecs.events import command_record, credit_record, decode_event
from services.domain.account.processor import advance, process
from services.domain.events import Purchase, Replace, Reserve
from services.domain.invoice_index import Bought, IndexedInvoice, Returned, apply_news
from services.domain.programme import Programmes
from services.domain.recomputation import recompute
from services.messaging.avro import encoder
from tests.support.builders import IDS
from tests.support.loyalty_stream import forward

OLD, NEW, THIRD = "old", "new", "third"
encode = encoder(LOYALTY_COMMANDS, IDS)


class Cards:
    """The accounts of several cards, the index of invoices, and the commands that are on their way to a card.

    Attributes:
        states: the state of each card's account.
        events, entries: by card, in the order in which the account reads and writes them.
        decisions: by command id.
        index: by invoice number. Only ``read_invoice`` uses it.
        waiting: the commands that no card has read, in the order in which they were sent: each card and its record.
        forgotten: the ids of the commands that an erasure deletes, and pairs of its card and invoice numbers.
        now: append time of the latest event.
    """

    def __init__(self, programmes=None, states=None):
        self.programmes, self.states = programmes or Programmes(), states or {}
        self.events, self.entries, self.decisions = defaultdict(list), defaultdict(list), {}
        self.index = defaultdict(IndexedInvoice)
        self.waiting, self.forgotten, self.now = [], set(), 0

    def happen(self, card, *events, delivered=True):
        """Process these events of a card together. Then deliver all commands, unless the test does it later."""
        outcome = process(self.states.get(card), events, self.programmes, card)
        self.states[card] = outcome.state
        self.events[card] += events
        self.entries[card] += outcome.entries
        self.decisions |= {decision.command_id: decision for decision in outcome.decisions}
        self.forgotten |= {each.command_id for each in outcome.forgotten}
        self.forgotten |= {(card, number) for number in outcome.forgotten_invoices}
        self.now = max([self.now, *(event.append_time for event in events)])
        self.waiting += [(each.to_card, credit_record(card, each)) for each in outcome.credits]
        self.waiting += [(to_card, command_record(to_card, each)) for to_card, each in outcome.commands]
        if delivered:
            self.deliver()
        return self

    def read_invoice(self, card, invoice):
        """The account and the index read an invoice in the same micro-batch. A return can have no card."""
        number, original = invoice.invoice_number, invoice.original_invoice_number
        news = defaultdict(list)
        if card:
            news[number].append(Bought(invoice.append_time, card))
        if original:
            news[original].append(Returned(invoice.append_time, card, invoice))
        outcomes = {about: apply_news(self.index[about], each) for about, each in news.items()}
        self.index |= {about: outcome.invoice for about, outcome in outcomes.items()}
        if card:
            self.happen(card, invoice, delivered=False)
        for outcome in outcomes.values():
            self.waiting += [(buyer, command_record(buyer, forward(each.invoice))) for buyer, each in outcome.forwarded]

    def deliver(self):
        """Deliver the commands that wait, and those that they cause, in the order in which they were sent."""
        while self.waiting:
            first, _ = self.waiting[0]
            self.deliver_next(first)
        return self

    def deliver_next(self, card):
        """Deliver the command that waits longest for this card."""
        command = next(each for each in self.waiting if each[0] == card)
        self.waiting.remove(command)
        self.happen(card, decode_event(self.now, encode(command[1])), delivered=False)

    def advance(self, until):
        """Let the time pass in all accounts."""
        for card, state in self.states.items():
            if state:
                outcome = advance(state, until, self.programmes)
                self.states[card] = outcome.state
                self.entries[card] += outcome.entries
        return self

    def total(self, *cards):
        """The points of these cards, or of all cards."""
        return sum(self.states[card].total for card in cards or self.states)


def bought(number="bought", time=1):
    """It earns 10.00 points."""
    return Purchase(time, number, Decimal(500))


BOUGHT = bought()
RESERVED = Reserve(append_time=2, command_id="R", points=4_00)


def move(time, to=NEW, kind=Replace, number=""):
    return kind(append_time=time, command_id=f"move{number}", counterparty=to, reason="lost", actor="clerk")


def kinds(entries):
    return [entry.kind for entry in entries]


def assert_that_an_audit_finds_nothing(cards):
    """It computes the same entries from the same events, and finds no event that is not processed."""
    for name, events in cards.events.items():
        recomputed = recompute(name, events, cards.entries[name], cards.programmes)
        assert cards.entries[name] == recomputed.settled.entries
        assert ([], []) == (recomputed.not_processed, recomputed.late.entries)
