"""What the audit knows of one customer: each fact as bytes with its source, as Spark brings them together."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from schemas.topics import LOYALTY, LOYALTY_BALANCES
from services.codecs.events import decode_event
from services.codecs.records import entry_from_notification
from services.codecs.state import decode_account
from services.domain.account.processor import Account
from services.domain.entries import Entry
from services.domain.events import Event, Transfer
from services.messaging.avro import decoder
from services.messaging.schema_ids import SchemaIds
from services.state_stores.catalogue import balance_body


class Source(StrEnum):
    """Where a fact is from."""

    EVENT = "events"
    LOYALTY = "loyalty topic"
    LEDGER = "ledger"
    BALANCE = "served balance"
    STATE = "Spark's state"


COMPARED = (Source.LOYALTY, Source.LEDGER, Source.BALANCE, Source.STATE)
"""What the audit compares with what it has recomputed."""


@dataclass(slots=True)
class Facts:
    """All there is to know of one customer.

    Attributes:
        recorded: entries by source: as the loyalty topic has them, and the ledger.
        balance: the JSON that the API answers with; None where it answers that there is none.
    """

    events: list[Event] = field(default_factory=list)
    recorded: dict[Source, list[Entry]] = field(default_factory=dict)
    balance: dict[str, Any] | None = None
    state: Account | None = None

    @property
    def record(self) -> list[Entry]:
        """The entries that there are: those of the topic, and of the ledger what the topic does not have any more."""
        in_topic = self.recorded.get(Source.LOYALTY, [])
        places = {(entry.opened_time, entry.sequence) for entry in in_topic}
        in_ledger = self.recorded.get(Source.LEDGER, [])
        return in_topic + [entry for entry in in_ledger if (entry.opened_time, entry.sequence) not in places]

    def count(self, source: Source) -> int:
        """How many facts there are of what is compared."""
        if source is Source.BALANCE:
            return int(self.balance is not None)
        if source is Source.STATE:
            return int(self.state is not None)
        return len(set(self.recorded.get(source, ())))


class FactsReader:
    """Reads the bytes of facts; values of topics by these schema ids."""

    def __init__(self, ids: SchemaIds) -> None:
        self._notification = decoder(LOYALTY, ids)
        self._balance = decoder(LOYALTY_BALANCES, ids)

    def read(self, rows: Iterable[tuple[str, int, bytes]], card: str | None, pseudonym: str) -> Facts:
        """Facts of (source, append time of an event, bytes); raises what the decoders of these bytes raise.

        A balance is the JSON that was served, or a Balance as the changelog has it. Events of an archive have
        pseudonyms for cards; the customer's own becomes the card again, so that a transfer to oneself stays one.
        """
        facts = Facts()
        for source, append_time, value in rows:
            match Source(source):
                case Source.EVENT:
                    event = decode_event(append_time, value)
                    if card and isinstance(event, Transfer) and event.counterparty == pseudonym:
                        event = replace(event, counterparty=card)
                    facts.events.append(event)
                case Source.BALANCE:
                    served = value if value.startswith(b"{") else balance_body(self._balance(value))
                    facts.balance = orjson.loads(served)
                case Source.STATE:
                    facts.state = decode_account(value)
                case recorded:
                    facts.recorded.setdefault(recorded, []).append(entry_from_notification(self._notification(value)))
        return facts
