"""A trading day of a simulated chain, as the messages its tills publish."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import NamedTuple

from schemas import topics
from services.domain.invoice import PosInvoice
from services.messaging import avro
from services.messaging.schema_ids import FolderSchemaIds, SchemaIds
from services.pos_simulator.broken import BREAKAGES, Breakage, break_invoice
from services.pos_simulator.chain import LARGEST_CHAIN, Chain
from services.pos_simulator.encoding import encoder
from services.pos_simulator.invoicing import Invoicing

REPEATABLE = 10_000
"""How many earlier messages a late repeat is chosen from; bounds the memory of a long run."""

FEWEST_CUSTOMERS = 2

_AT_ONCE = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    """What is simulated. These options give the same messages each time, byte for byte.

    Attributes:
        count: messages in all, repeats and broken ones among them.
        seed: names the invoices of the day: two seeds never share an invoice number, one seed always uses the same.
        prime, home_delivery: shares of the invoices, 0 to 1.
        repeats: share of messages that are an earlier message once more.
        broken: share of messages that no reader can accept.
        customers: shoppers of the chain, with and without PRIME.
        day: in the stores' own time zone (``rhythm.TIME_ZONE``).
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

    def __post_init__(self) -> None:
        if self.count < 0 or self.seed < 0:
            raise ValueError("count and seed must not be negative")
        for name in ("prime", "home_delivery", "repeats", "broken"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, 0 to 1, not {getattr(self, name)}")
        if self.repeats + self.broken > 1:
            raise ValueError("repeats and broken together are more than 1")
        if self.customers < FEWEST_CUSTOMERS:
            raise ValueError(f"customers must be {FEWEST_CUSTOMERS} or more: with and without PRIME")
        if not 1 <= self.stores <= LARGEST_CHAIN:
            raise ValueError(f"stores must be 1 to {LARGEST_CHAIN}")


class Kind(StrEnum):
    """What a message is to a reader that counts every invoice once."""

    INVOICE = "invoice"
    REPEAT = "repeat"
    BROKEN = "broken"


class Message(NamedTuple):
    """What a till publishes to pos-invoices.

    Attributes:
        key: the StoreID as UTF-8; None where it is not known.
        invoice: None for a broken message, the first one's for a repeat; read only.
        breakage: how it is broken.
        violation: the reason a dead letter must give, where the message decodes but breaks a rule.
    """

    key: bytes | None
    value: bytes
    kind: Kind
    invoice: PosInvoice | None = None
    breakage: Breakage | None = None
    violation: str | None = None


class Simulation:
    """The day that the options describe. Each call of ``messages`` tells it from its beginning."""

    def __init__(self, options: Options, ids: SchemaIds | None = None) -> None:
        ids = ids or FolderSchemaIds()
        self._options = options
        self._chain = Chain(options.stores, options.customers)
        self._encode = encoder(ids)
        # A broken invoice carries parts of its own, which the encoder of shared parts would keep for ever.
        self._encode_one = avro.encoder(topics.POS_INVOICES, ids)

    def messages(self) -> Iterator[Message]:
        """The messages in the order of the day, late repeats aside."""
        options = self._options
        invoicing = Invoicing(
            options.seed, self._chain, options.customers, options.prime, options.home_delivery, options.day
        )
        # A second source of chance, so that another share of trouble does not change who buys what.
        trouble = random.Random(f"{options.seed}/trouble")
        earlier: list[Message] = []
        latest: Message | None = None
        told = 0
        for slot in range(options.count):
            fate = trouble.random()
            if fate < options.repeats and latest:
                # At once, as from a till that saw no acknowledgement, or any time later.
                again = latest if trouble.random() < _AT_ONCE else trouble.choice(earlier)
                yield again._replace(kind=Kind.REPEAT)
                continue
            invoice = invoicing.next_invoice((slot + 0.5) / options.count)
            if fate >= 1 - options.broken:
                yield self._broken(invoice, trouble)
                continue
            latest = Message(str(invoice["StoreID"]).encode(), self._encode(invoice), Kind.INVOICE, invoice)
            told += 1
            if options.repeats:
                _remember(latest, earlier, told, trouble)
            yield latest

    def _broken(self, invoice: PosInvoice, trouble: random.Random) -> Message:
        breakage = trouble.choice(BREAKAGES)
        broken = break_invoice(breakage, invoice, self._encode_one, trouble)
        return Message(broken.key, broken.value, Kind.BROKEN, None, breakage, broken.violation)


def _remember(message: Message, earlier: list[Message], told: int, trouble: random.Random) -> None:
    """Keep a fair sample of the messages told so far, this one being the last of them (reservoir sampling)."""
    if len(earlier) < REPEATABLE:
        earlier.append(message)
    elif (place := int(trouble.random() * told)) < REPEATABLE:
        earlier[place] = message
