"""Writes records to topics, and reads topics."""

import contextlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Message, Producer, TopicPartition

from schemas.topics import DEAD_LETTERS, LOYALTY_BALANCES, LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.clock import now
from services.codecs.events import command_record
from services.domain.events import Command
from services.messaging import clients, headers
from services.messaging.administration import create_topics
from services.messaging.avro import Record, decoder, encoder
from services.messaging.schema_ids import schema_ids
from services.settings import Settings
from tests.support.builders import IDS, available_points

NOBODY = "127.0.0.1:1"
"""An address at which no broker answers."""

NO_BROKER = (
    f"error: no Kafka broker answers at {NOBODY}: start Kafka, or set LOYALTY_KAFKA_BOOTSTRAP_SERVERS to its address\n"
)
"""The error of a command that uses this address."""

KAFKA_TIMEOUT_SECONDS = 120.0
"""The longest time for one answer of a broker on a busy machine."""


@lru_cache(maxsize=1)
def producer_of(settings: Settings) -> Producer:
    """The producer of the current test. A new idempotent producer waits half a second before its first record."""
    return clients.producer(settings, "test")


@contextlib.contextmanager
def created_topics(settings: Settings) -> Iterator[list[str]]:
    """Create the topics of the catalogue, and delete them at the end. Yields their names."""
    names = create_topics(settings)
    yield names
    client = clients.admin(settings)  # the futures fail if the client is garbage-collected first
    for future in client.delete_topics(names).values():
        future.result()


def publish(settings: Settings, topic: Topic, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    """Publish keys and values, and wait until the broker has stored them.

    Waits for the next millisecond, so that records of a later call have later append times. The order of events of the
    same millisecond is not defined.
    """
    client = producer_of(settings)
    for key, value in records:
        client.produce(settings.name_of(topic), key=key, value=value)
        client.poll(0)
    assert 0 == client.flush(KAFKA_TIMEOUT_SECONDS)
    stored = now()
    while now() == stored:
        pass


def publish_invoices(settings: Settings, *invoices: dict[str, Any]) -> None:
    encode = encoder(POS_INVOICES, IDS)
    publish(settings, POS_INVOICES, [(each["StoreID"].encode(), encode(each)) for each in invoices])


def publish_commands(settings: Settings, *commands: tuple[str, Command]) -> None:
    """Publish commands, each with its card."""
    encode = encoder(LOYALTY_COMMANDS, IDS)
    records = ((card.encode(), encode(command_record(card, command))) for card, command in commands)
    publish(settings, LOYALTY_COMMANDS, records)


def set_aside(settings: Settings, key: bytes | None, value: bytes | None, reason: str, offset: str) -> None:
    """Write a dead letter of pos-invoices. In contrast to the pipeline, this also accepts valid records."""
    origin = {
        headers.DEAD_LETTER_TOPIC: settings.name_of(POS_INVOICES),
        headers.DEAD_LETTER_PARTITION: "1",
        headers.DEAD_LETTER_OFFSET: offset,
        headers.DEAD_LETTER_REASON: reason,
    }
    client = producer_of(settings)
    client.produce(settings.name_of(DEAD_LETTERS), value, key, headers=list(origin.items()))
    assert 0 == client.flush(KAFKA_TIMEOUT_SECONDS)


def read_all(settings: Settings, topic: Topic) -> list[Message]:
    """All records up to the current end of the topic, ordered by partition and offset."""
    found = read_each(settings, settings.name_of(topic))
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def read_each(settings: Settings, name: str) -> Iterator[Message]:
    """The records up to the current end of the topic, one after the other. Only each partition is in order."""
    client = clients.bounded_consumer(settings, "test")
    try:
        partitions = [
            TopicPartition(name, partition, OFFSET_BEGINNING)
            for partition in client.list_topics(name).topics[name].partitions
        ]
        client.assign(partitions)
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = client.poll(KAFKA_TIMEOUT_SECONDS)
            assert message is not None, f"the broker sent no record of {name} for {KAFKA_TIMEOUT_SECONDS:.0f} s"
            if message.error():
                ended.add(int(message.partition() or 0))
            else:
                yield message
    finally:
        client.close()


def headers_of(message: Message) -> dict[str, bytes]:
    return {name: value if isinstance(value, bytes) else b"" for name, value in dict(message.headers() or ()).items()}


def records_of(settings: Settings, topic: Topic) -> list[Record]:
    """All records of the topic, decoded. Includes duplicates, but no tombstones."""
    decode = decoder(topic, IDS)
    return [decode(value) for message in read_all(settings, topic) if (value := message.value()) is not None]


def unique_records_of(settings: Settings, topic: Topic) -> dict[str, Record]:
    """The records of the topic by CloudEvents id, without duplicates. Fails if two duplicates differ."""
    decode = decoder(topic, IDS)
    values: dict[str, bytes] = {}
    for message in read_all(settings, topic):
        identity, value = headers_of(message)["ce_id"].decode(), bytes(message.value() or b"")
        assert value == values.setdefault(identity, value), f"{identity} was written twice with different bytes"
    return {identity: decode(value) for identity, value in values.items()}


def highest_balances_of(settings: Settings) -> dict[str, Record]:
    """The balance of each card: the record with its highest sequence number."""
    balances: dict[str, Record] = {}
    for record in records_of(settings, LOYALTY_BALANCES):
        card = record["CustomerCardNo"]
        if record["Sequence"] > balances.get(card, {"Sequence": 0})["Sequence"]:
            balances[card] = record
    return balances


def last_balances_of(settings: Settings) -> dict[str, Record]:
    """The balance of each card: its last record. Leaves out cards whose last record is a tombstone."""
    decode = decoder(LOYALTY_BALANCES, IDS)
    last = {bytes(each.key() or b"").decode(): each.value() for each in read_all(settings, LOYALTY_BALANCES)}
    return {card: decode(value) for card, value in last.items() if value is not None}


class BalanceWriter:
    """Writes ``loyalty-balances`` as the loyalty query does, or with the bytes that a test chooses."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.name_of(LOYALTY_BALANCES)
        self._producer = producer_of(settings)
        self._encode = encoder(LOYALTY_BALANCES, schema_ids(settings))

    def balance(self, card: str, points: str, sequence: int, updated: int = 1_700_000_000_000) -> None:
        record = {
            "CustomerCardNo": card,
            **available_points(points),
            "Sequence": sequence,
            "UpdatedTime": updated,
        }
        self.raw(card, self._encode(record))

    def raw(self, card: str, value: bytes | None) -> None:
        while True:
            with contextlib.suppress(BufferError):
                self._producer.produce(self._topic, key=card.encode(), value=value)
                self._producer.poll(0)
                return
            self._producer.poll(0.5)

    def flush(self) -> None:
        assert 0 == self._producer.flush(KAFKA_TIMEOUT_SECONDS)
