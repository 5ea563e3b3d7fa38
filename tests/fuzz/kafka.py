"""The targets for Kafka: values, keys and headers of invoices and commands, and of topics that the system reads back.

If an invoice or a command is valid, its event changes an account, and the output records are made.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple

import orjson
from confluent_kafka import Message
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pipelines.accounts.records import rows_of, writer_ids
from schemas import topics
from services.account_events import Found, find_in_commands, find_in_invoices
from services.codecs.events import decode_event
from services.codecs.state import decode_account, encode_account
from services.domain import command_rules
from services.domain.account import processor
from services.domain.account.model import Account
from services.domain.invoice import PRIME
from services.domain.programme import Programme, Programmes
from services.ledger.records import entry_of
from services.messaging.avro import UndecodableError, decoder
from services.messaging.dead_letters import dead_letter_of, deduplicated
from services.open_telemetry import Spans
from services.state_stores import catalogue
from services.state_stores.definition import StoreDefinition
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import StateStore, state_stores
from services.state_stores.task import ChangelogRecord, StoreTask, TaskProgress
from services.verdicts import FAULT, judge_with_body
from services.webhooks.message import Message as Notified
from tests.fuzz.avro import INTS, Values, framed
from tests.fuzz.target import DefectError, Feed, FuzzTarget, Outcome
from tests.support.builders import IDS
from tests.support.mutations import ANY_MUTATIONS, damaged, endless_damaged_invoices

_PROGRAMMES = Programmes.of([Programme()])
_FORGOTTEN_AFTER = 200
"""After this number of inputs all accounts start empty again. Otherwise they would become larger than any real one."""


class KafkaRecord(NamedTuple):
    """A record as a client receives it."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]] = []  # noqa: RUF012 - nobody changes it


def _keys(rng: Random) -> bytes | None:
    return rng.choice((b"STR1", b"", None, b"\xff\xfe", b"A", rng.randbytes(8)))


def _garbage(rng: Random) -> bytes:
    """Random bytes, or pieces of JSON in random order."""
    if rng.random() < 0.3:
        return rng.randbytes(rng.randrange(64))
    pieces = (
        *(b"{", b"}", b"[", b"]", b":", b",", b'"', b'"StoreID"', b"1", b"-", b"e5", b"\\u0000", b"null", b" "),
        b"\xff",
    )
    return b"{" + b"".join(rng.choice(pieces) for _ in range(rng.randrange(40)))


def invoices(rng: Random) -> Iterator[KafkaRecord]:
    """Values of pos-invoices. About 9 % are garbage, and 1 % are None."""
    for value in endless_damaged_invoices(rng, rng.randrange(2**31)):
        kind = rng.random()
        yield KafkaRecord(_keys(rng), None if kind < 0.01 else _garbage(rng) if kind < 0.1 else value)


@contextmanager
def prepare_invoices() -> Iterator[Feed]:
    known = IDS.known(topics.POS_INVOICES)
    judge, find, accounts = judge_with_body(topics.POS_INVOICES, known), find_in_invoices({PRIME}, known), _Accounts()

    def feed(record: KafkaRecord) -> Outcome:
        found = find(record.value, record.key)
        if found.reason != judge(record.value, record.key).reason:
            raise DefectError("the loyalty query and the fan-out do not decide alike")
        return _process_found(found, accounts)

    yield feed


def commands(rng: Random) -> Iterator[KafkaRecord]:
    """Values of loyalty-commands. The key of most records is the card."""
    known = [f"command-{number}" for number in range(30)]
    part = encode_account(Account(1))

    def payload(rng: Random) -> bytes | None:
        return rng.choice((None, b"", damaged(part, ANY_MUTATIONS, rng)))

    while True:
        card = rng.choice(("A", "B", "C"))
        values: Values = {
            "CommandID": lambda rng: rng.choice(known),
            "RedemptionID": lambda rng: rng.choice(known),
            "CustomerCardNo": lambda _, card=card: card,  # type: ignore[misc]
            "Counterparty": lambda rng: rng.choice(("A", "B", "other")),
            "OriginID": lambda rng: rng.choice(("", *known)),
            "Kind": lambda rng: rng.choice(command_rules.KINDS),
            "Points": lambda rng: Decimal(rng.choice((1, 100, 1250, -100, 99_999_999_999_99))).scaleb(-2),
            "IssuedTime": lambda rng: rng.choice(INTS),
            "Payload": payload,
            "InvoiceNumber": lambda rng: rng.choice(known),
            "TotalAmount": lambda rng: rng.choice((0.0, 1.0, -7.25, 12.5)),
            **dict.fromkeys(("RequestHash", "Reason", "Actor"), lambda _: "x"),
        }
        value = framed(rng, "LoyaltyCommand", values)
        yield KafkaRecord(card.encode() if rng.random() < 0.95 else _keys(rng), value)


@contextmanager
def prepare_commands() -> Iterator[Feed]:
    find, accounts = find_in_commands(IDS.known(topics.LOYALTY_COMMANDS)), _Accounts()
    yield lambda record: _process_found(find(record.value, record.key), accounts)


def _process_found(found: Found, accounts: "_Accounts") -> Outcome:
    """Process the event of a record, unless the query refuses the record."""
    if found.reason is not None:
        if found.reason.startswith(FAULT):
            raise DefectError(found.reason)
        return Outcome.SET_ASIDE
    if found.event is not None:
        accounts.process(found.CustomerCardNo or "A", found.event)
    return Outcome.ACCEPTED


class _Accounts:
    """Processes events as the loyalty query does, without the state of Spark."""

    def __init__(self) -> None:
        self._states: dict[str, bytes] = {}
        self._writer_ids = writer_ids(IDS)
        self._now = self._processed = 0

    def process(self, card: str, event: bytes) -> None:
        self._processed += 1
        if self._processed % _FORGOTTEN_AFTER == 0:
            self._states.clear()
        self._now += 60_000
        before = decode_account(stored) if (stored := self._states.get(card)) else None
        outcome = processor.process(before, [decode_event(self._now, event)], _PROGRAMMES, card)
        for _ in rows_of(card, outcome, self._writer_ids):
            pass
        if outcome.state is None:
            self._states.pop(card, None)
        else:
            self._states[card] = encode_account(outcome.state)


_HEADERS = (
    *("traceparent", "tracestate", "ce_id", "dead_letter_topic", "dead_letter_partition", "dead_letter_offset"),
    *("dead_letter_reason", "", "\u00e9", "content-type"),
)
_HEADER_VALUES = (
    *(None, b"", b"\xff\xfe", b"0", b"-1", b"1e5", b"9" * 5_000, "\u0660".encode(), b"pos-invoices", b"\0"),
    b"x" * 10_000,
    *(b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-0" + flags for flags in (b"0", b"1", b"f")),
    *(b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"ff-", b"a=b,c=d" * 600, b"x" * 10_000),
)

_GOOD_HEADERS = (
    ("traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"),
    ("dead_letter_topic", b"pos-invoices"),
    ("dead_letter_partition", b"0"),
    ("dead_letter_offset", b"42"),
)


def headers(rng: Random) -> Iterator[KafkaRecord]:
    """Records with headers that the system reads, and with others. Their values are odd or damaged."""
    while True:
        found: list[tuple[str, str | bytes | None]] = [*_GOOD_HEADERS] if rng.random() < 0.5 else []
        for _ in range(rng.randrange(6)):
            value = rng.choice(_HEADER_VALUES)
            if value and rng.random() < 0.3:
                value = damaged(value, ANY_MUTATIONS, rng)
            found.append((rng.choice(_HEADERS), value))
        rng.shuffle(found)
        yield KafkaRecord(_keys(rng), rng.randbytes(4), found)


@contextmanager
def prepare_headers() -> Iterator[Feed]:
    """Reads the headers as the reader of dead letters does, and as the traces of each consumer do."""
    exporter = InMemorySpanExporter()
    spans = Spans(SimpleSpanProcessor(exporter))

    def feed(record: KafkaRecord) -> Outcome:
        message = Message(
            "dead-letters", 0, 1, record.key, record.value, headers=record.headers, timestamp=(1, 1_790_000_000_000)
        )
        letters = [*deduplicated([dead_letter_of(message)] * 2)]
        with (
            spans.batch("consume", [message.headers()], "", 0.0, {}),
            spans.span("one", "consumer", message.headers(), {}),
        ):
            pass
        exporter.clear()
        named = letters[0].topic is not None and letters[0].origin is not None
        if len(letters) != (1 if named else 2):
            raise DefectError(f"{len(letters)} dead letters")
        return Outcome.ACCEPTED if named else Outcome.SET_ASIDE

    yield feed


_POINTS = [f"{name}LoyaltyPoints" for name in ("Earned", "Total", "Available", "Pending", "Reserved")]
_TIMES = ("UpdatedTime", "OpenedTime", "WindowEnd", "EffectiveTime", "PublishedTime", "ExpiresTime", "CreatedTime")


class Change(NamedTuple):
    """A record of a changelog."""

    topic: str
    key: bytes | None
    value: bytes | None


_CHANGELOGS = {each.changelog.name: each.changelog for each in (*catalogue.stores(IDS), catalogue.api_keys(IDS))}


def changes(rng: Random) -> Iterator[Change]:
    """Records of all changelogs. Most of them have the key that belongs to their value."""
    while True:
        topic = rng.choice([*_CHANGELOGS.values()])
        subject, number = rng.choice(("A", "B", "STR1", "\u00e9")), rng.choice((1, 2, 3, 60_000))
        values: Values = {
            **dict.fromkeys(("CustomerCardNo", "CommandID", "StoreID", "KeyID"), lambda _, subject=subject: subject),  # type: ignore[misc]
            **dict.fromkeys(("WindowStart", "Version"), lambda _, number=number: number),  # type: ignore[misc]
            **dict.fromkeys(("Sequence", "Count"), lambda rng: rng.choice((1, 2, 3))),
            **dict.fromkeys(_TIMES, lambda rng: rng.choice((0, 1_790_000_000_000))),
        }
        key = {"StoreID@WindowStart": f"{subject}@{number}", "Version": str(number)}.get(topic.key, subject).encode()
        value = framed(rng, topic.value, values) if rng.random() < 0.97 else rng.choice((None, b"", b"{}"))
        yield Change(topic.name, key if rng.random() < 0.95 else _keys(rng), value)


@contextmanager
def prepare_changes() -> Iterator[Feed]:
    stores: dict[str, list[StateStore]] = {}
    state: dict[str, Any] = {"offset": 0}

    def restart() -> None:
        stores.clear()
        definitions: tuple[StoreDefinition, ...] = (*catalogue.stores(IDS), catalogue.api_keys(IDS))
        for store in state_stores(definitions).values():
            store.add(StoreTask(store.definition, 0, MemoryStorePartition(), "fuzz", TaskProgress(None, 0, 0, 0, 0)))
            stores.setdefault(store.definition.changelog.name, []).append(store)

    restart()

    def feed(change: Change) -> Outcome:
        state["offset"] += 1
        if state["offset"] % _FORGOTTEN_AFTER == 0:
            restart()
        skipped = 0
        for store in stores[change.topic]:
            task = store.tasks[0]
            before, position = task.progress.undecodable, task.progress.position
            task.apply([ChangelogRecord(position, 1_790_000_000_000, change.key, change.value)])
            skipped += task.progress.undecodable - before
            if task.progress.position != position + 1:
                raise DefectError("the record was not applied")
            if change.key is not None and (found := task.get(change.key)) is not None:
                orjson.loads(found.body)
        return Outcome.SET_ASIDE if skipped else Outcome.ACCEPTED

    yield feed


def notifications(rng: Random) -> Iterator[Change]:
    """Records of the topic loyalty, which the ledger and the webhooks read."""
    while True:
        values: Values = {
            "CustomerCardNo": lambda _: "A",
            "Kind": lambda rng: rng.choice(("earned", "redeemed", "reserved", "erased", "moved", "expired")),
            "Sequence": lambda rng: rng.choice((1, 2, 3)),
            "TotalAmount": lambda _: 1.0,
            # A record with points that are null has no further effect.
            **dict.fromkeys(_POINTS, lambda rng: Decimal(rng.choice((0, 1250, -100, 10**15))).scaleb(-2)),
            **dict.fromkeys(_TIMES, lambda rng: rng.choice((0, 1_790_000_000_000))),
        }
        key = b"A" if rng.random() < 0.95 else _keys(rng)
        yield Change(topics.LOYALTY.name, key, framed(rng, "Notification", values))


@contextmanager
def prepare_notifications() -> Iterator[Feed]:
    decode: Callable[[bytes], dict[str, Any]] = decoder(topics.LOYALTY, IDS)

    def feed(change: Change) -> Outcome:
        found = Outcome.ACCEPTED
        try:
            record = decode(change.value or b"")
        except UndecodableError:
            return Outcome.SET_ASIDE
        try:
            entry_of(record, change.key)
        except UndecodableError:
            found = Outcome.SET_ASIDE
        try:
            Notified.of(record)
        except OverflowError:
            found = Outcome.SET_ASIDE
        return found

    yield feed


TARGETS = (
    FuzzTarget("kafka-invoices", invoices, prepare_invoices),
    FuzzTarget("kafka-commands", commands, prepare_commands),
    FuzzTarget("kafka-headers", headers, prepare_headers),
    FuzzTarget("changelogs", changes, prepare_changes),
    FuzzTarget("notifications", notifications, prepare_notifications),
)
