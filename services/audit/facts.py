"""The facts of one customer, decoded from the bytes that Spark collects."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from schemas.topics import LOYALTY, LOYALTY_BALANCES
from services.codecs.events import decode_event
from services.codecs.records import entry_from_notification
from services.codecs.state import decode_account
from services.domain.account.model import Account
from services.domain.entries import AccountVersion, Entry
from services.domain.events import Event, Replace, Transfer
from services.domain.formats import from_time_text
from services.messaging.avro import decoder
from services.messaging.schema_ids import SchemaIds
from services.state_stores.catalogue import balance_body


class Source(StrEnum):
    EVENT = "events"
    LOYALTY = "loyalty topic"
    LEDGER = "ledger"
    BALANCE = "served balance"
    STATE = "Spark's state"


COMPARED = (Source.LOYALTY, Source.LEDGER, Source.BALANCE, Source.STATE)
"""The sources that the audit compares with the recomputed account."""


@dataclass(slots=True)
class Facts:
    """All facts of one customer.

    Attributes:
        recorded: the entries of the loyalty topic and of the ledger, by source.
        balance: the body of the balance that the API serves; None if it serves none.
        state: the account in Spark's state store; None if it has none.
    """

    events: list[Event] = field(default_factory=list)
    recorded: dict[Source, list[Entry]] = field(default_factory=dict)
    balance: dict[str, Any] | None = None
    state: Account | None = None

    @property
    def record(self) -> list[Entry]:
        """All entries of the topic, and the ledger's entries that the topic no longer has."""
        in_topic = self.recorded.get(Source.LOYALTY, [])
        in_topic_versions = {entry.version for entry in in_topic}
        in_ledger = self.recorded.get(Source.LEDGER, [])
        return in_topic + [entry for entry in in_ledger if entry.version not in in_topic_versions]

    @property
    def served_versions(self) -> list[tuple[AccountVersion, int]]:
        """The versions of the served balance and of Spark's account, each with the time of its last entry."""
        found = []
        if self.balance:
            version = AccountVersion(from_time_text(self.balance.get("OpenedTime")), self.balance["Sequence"])
            found.append((version, from_time_text(self.balance["UpdatedTime"])))
        if self.state:
            found.append((AccountVersion(self.state.opened_time, self.state.sequence), self.state.updated_time))
        return found

    @property
    def latest_version(self) -> AccountVersion | None:
        """The highest version that is recorded or served."""
        versions = [entry.version for entry in self.record] + [version for version, _ in self.served_versions]
        return max(versions, default=None)

    def count(self, source: Source) -> int:
        """The number of facts of a compared source."""
        if source is Source.BALANCE:
            return int(self.balance is not None)
        if source is Source.STATE:
            return int(self.state is not None)
        return len(set(self.recorded.get(source, ())))


class FactsReader:
    """Decodes the facts of a customer."""

    def __init__(self, ids: SchemaIds) -> None:
        self._notification = decoder(LOYALTY, ids)
        self._balance = decoder(LOYALTY_BALANCES, ids)

    def read(self, rows: Iterable[tuple[str, int, bytes]], card: str | None, pseudonym: str) -> Facts:
        """Decode rows of (source, append time of an event, bytes). Raises the errors of the decoders.

        A balance is the served JSON or the Balance of the changelog. An archive has pseudonyms instead of cards. This
        method replaces only the customer's own pseudonym by the card, so that the rules recognise a transfer to the
        same card.
        """
        facts = Facts()
        for source, append_time, value in rows:
            match Source(source):
                case Source.EVENT:
                    event = decode_event(append_time, value)
                    if card and isinstance(event, Transfer | Replace) and event.counterparty == pseudonym:
                        event = replace(event, counterparty=card)
                    facts.events.append(event)
                case Source.BALANCE:
                    served = value if value.startswith(b"{") else balance_body(self._balance(value))
                    facts.balance = orjson.loads(served)
                case Source.STATE:
                    state = decode_account(value)
                    # The marker of an erased account counts as no account.
                    facts.state = state if isinstance(state, Account) else None
                case recorded:
                    facts.recorded.setdefault(recorded, []).append(entry_from_notification(self._notification(value)))
        return facts
