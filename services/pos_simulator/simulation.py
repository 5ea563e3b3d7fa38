"""The messages of all tills on a simulated trading day."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import NamedTuple

from services.domain.invoice import PosInvoice
from services.messaging.schema_ids import FolderSchemaIds, SchemaIds
from services.pos_simulator.broken import Breakage, break_invoice
from services.pos_simulator.chain import LARGEST_CHAIN, Chain
from services.pos_simulator.encoding import encoder
from services.pos_simulator.invoicing import Invoicing
from services.pos_simulator.offline import Offline
from services.pos_simulator.returning import Returning

REPEATABLE = 10_000
"""The most messages in the sample from which a late duplicate is chosen. It limits the memory of a long run."""

FEWEST_CUSTOMERS = 2
LARGEST_OFFLINE = 0.5

_IMMEDIATE = 0.5
"""The share of the duplicates that come directly after their originals."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a simulation. Equal options give equal messages, byte for byte.

    Attributes:
        count: the number of messages, with duplicates and broken ones.
        seed: a part of each invoice number. Two seeds have no common number.
        prime, home_delivery: shares of the invoices, 0 to 1.
        repeats: the share of the messages that are duplicates.
        broken: the share of the messages that no reader can accept.
        returns, exchanges: shares of the invoices that return items of an earlier one.
        offline: the share of the invoices that a till sends hours later, with the times of their receipts.
        customers: the number of customers, with and without PRIME.
        day: in the time zone of the shops (``invoicing.TIME_ZONE``).
    """

    count: int = 2_000
    seed: int = 1
    prime: float = 0.43
    home_delivery: float = 0.35
    repeats: float = 0.01
    broken: float = 0.01
    customers: int = 5_000
    stores: int = 20
    day: date = date(2026, 3, 2)
    returns: float = 0
    exchanges: float = 0
    offline: float = 0

    def __post_init__(self) -> None:
        if self.count < 0 or self.seed < 0:
            raise ValueError("count and seed must not be negative")
        for name in ("prime", "home_delivery", "repeats", "broken", "returns", "exchanges", "offline"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, and is {getattr(self, name)}")
        if self.repeats + self.broken > 1:
            raise ValueError("repeats and broken together must not be more than 1")
        if self.returns + self.exchanges > 1:
            raise ValueError("returns and exchanges together must not be more than 1")
        if self.offline > LARGEST_OFFLINE:
            raise ValueError(f"offline must be at most {LARGEST_OFFLINE}: the tills must send the rest in the evening")
        if self.customers < FEWEST_CUSTOMERS:
            raise ValueError(f"customers must be at least {FEWEST_CUSTOMERS}: one with and one without PRIME")
        if not 1 <= self.stores <= LARGEST_CHAIN:
            raise ValueError(f"stores must be from 1 to {LARGEST_CHAIN}")


class Kind(StrEnum):
    INVOICE = "invoice"
    REPEAT = "repeat"
    BROKEN = "broken"


class Message(NamedTuple):
    """A message in pos-invoices.

    Attributes:
        key: the StoreID in UTF-8; None if it is unknown.
        invoice: None for a broken message. It must not change.
        breakage: None for a message that is not broken.
    """

    key: bytes | None
    value: bytes
    kind: Kind
    invoice: PosInvoice | None = None
    breakage: Breakage | None = None


class Simulation:
    """A simulated day. Each call of ``messages`` starts at its beginning."""

    def __init__(self, options: Options, ids: SchemaIds | None = None) -> None:
        self._options = options
        self._chain = Chain(options.stores)
        self._encode = encoder(ids or FolderSchemaIds())

    def messages(self) -> Iterator[Message]:
        """The messages in the order of the day."""
        options = self._options
        invoicing = Invoicing(
            options.seed, self._chain, options.customers, options.prime, options.home_delivery, options.day
        )
        next_invoice = invoicing.next_invoice
        if options.returns or options.exchanges:
            next_invoice = Returning(invoicing, options.seed, options.returns, options.exchanges).next_invoice
        offline = Offline(next_invoice, options.seed, options.offline, options.count)
        # A second generator, so that the shares of duplicates and broken messages do not change the invoices.
        rng = random.Random(f"{options.seed}/trouble")
        earlier: list[Message] = []
        latest: Message | None = None
        written = 0
        for slot in range(options.count):
            draw = rng.random()
            if draw < options.repeats and latest and not offline.needs_rest(slot):
                # A duplicate comes directly after its original, or at any time later.
                again = latest if rng.random() < _IMMEDIATE else rng.choice(earlier)
                yield again._replace(kind=Kind.REPEAT)
                continue
            invoice = offline.next_invoice(slot)
            if draw >= 1 - options.broken:
                yield self._broken(invoice, rng)
                continue
            latest = Message(str(invoice["StoreID"]).encode(), self._encode(invoice), Kind.INVOICE, invoice)
            written += 1
            if options.repeats:
                _remember(latest, earlier, written, rng)
            yield latest

    def _broken(self, invoice: PosInvoice, rng: random.Random) -> Message:
        breakage = rng.choice([*Breakage])
        key, value = break_invoice(breakage, invoice, self._encode, rng)
        return Message(key, value, Kind.BROKEN, breakage=breakage)


def _remember(message: Message, earlier: list[Message], written: int, rng: random.Random) -> None:
    """Keep a uniform sample of all messages up to this one (reservoir sampling)."""
    if len(earlier) < REPEATABLE:
        earlier.append(message)
    elif (index := int(rng.random() * written)) < REPEATABLE:
        earlier[index] = message
