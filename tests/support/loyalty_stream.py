"""The loyalty query without Spark and Kafka: accounts, the index of invoices, and the commands that they send."""

from collections import defaultdict
from dataclasses import replace
from typing import cast

from services.codecs.state import decode_account, encode_account
from services.domain.account.processor import process
from services.domain.entries import Entry
from services.domain.events import Event, Forward, Purchase, derived_id
from services.domain.invoice_index import Bought, Forgotten, IndexedInvoice, Returned, apply_news
from services.domain.programme import Programmes

PROGRAMMES = Programmes()

Read = tuple[str, Event]
"""An event, and the card that it carries: empty for none."""


class LoyaltyStream:
    """Processes batches. The index and the accounts send commands, which the next batch reads.

    Attributes:
        programmes: the versions of the programme.
        index: the indexed invoices, by invoice number.
        accounts: the encoded accounts by card, as in the state of Spark.
        entries: the entries by card, in the order in which the account wrote them.
        events: the events by card, in the order in which the account read them.
    """

    def __init__(self, programmes: Programmes = PROGRAMMES) -> None:
        self.programmes = programmes
        self.index: defaultdict[str, IndexedInvoice] = defaultdict(IndexedInvoice)
        self.accounts: dict[str, bytes] = {}
        self.entries: defaultdict[str, list[Entry]] = defaultdict(list)
        self.events: defaultdict[str, list[Event]] = defaultdict(list)
        self._sent: list[Read] = []
        self._forgotten: list[tuple[str, Forgotten]] = []

    def read(self, batch: list[Read]) -> None:
        """Process these events, and the commands of the previous batch."""
        by_card: defaultdict[str, list[Event]] = defaultdict(list)
        news: defaultdict[str, list[Bought | Returned | Forgotten]] = defaultdict(list)
        for number, forgotten in self._forgotten:
            news[number].append(forgotten)
        commands, self._sent, self._forgotten = self._sent, [], []
        for card, event in [*commands, *batch]:
            if card:
                by_card[card].append(event)
            if isinstance(event, Purchase):
                if card and self.programmes.at(event.append_time).is_eligible(event.customer_type):
                    news[event.invoice_number].append(Bought(event.append_time, card))
                if original := event.original_invoice_number:
                    news[original].append(Returned(event.append_time, card, event))
        for number, about in news.items():
            settled = apply_news(self.index[number], about)
            self.index[number] = settled.invoice
            self._sent += [(card, forward(each.invoice)) for card, each in settled.forwarded]
        for card, events in by_card.items():
            self.events[card] += events
            before = self.accounts.get(card)
            outcome = process(decode_account(before) if before else None, events, self.programmes, card)
            if outcome.state:
                self.accounts[card] = encode_account(outcome.state)
            self.entries[card] += outcome.entries
            now = max(event.append_time for event in events)
            sent = [(to_card, replace(command, append_time=now)) for to_card, command in outcome.commands]
            self._sent += cast(list[Read], sent)
            self._forgotten += [(number, Forgotten(0, card)) for number in outcome.forgotten_invoices]

    def total(self, card: str) -> int:
        return sum(entry.points for entry in self.entries[card])


def forward(event: Purchase) -> Forward:
    return Forward(
        append_time=event.append_time, command_id=derived_id(event.invoice_number, "/forward"), invoice=event
    )


def stream_of(*batches: list[Read]) -> LoyaltyStream:
    """The stream after these batches, and after one more batch for the commands of the last one."""
    stream = LoyaltyStream()
    for batch in [*batches, []]:
        stream.read(batch)
    return stream
