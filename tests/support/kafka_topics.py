"""What stands on a topic, for tests: all of it, or what it amounts to for a reader that ignores repeats."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Message, TopicPartition

from schemas.topics import LOYALTY_BALANCES, Topic
from services.messaging.avro import Record, decoder
from services.messaging.clients import consumer, producer
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings

IDS = FolderSchemaIds()
PATIENCE = 120.0
"""Seconds for one answer of a broker that is alive but starved."""


def publish(settings: Settings, topic: Topic, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    """Publish keys and values, and wait until the broker has them."""
    client = producer(settings, "test")
    for key, value in records:
        client.produce(settings.name_of(topic), key=key, value=value)
        client.poll(0)
    assert 0 == client.flush(PATIENCE)


def read_all(settings: Settings, topic: Topic) -> list[Message]:
    """Every record of the topic up to its end now, partition by partition in the order of the log."""
    client = consumer(settings, "test")
    name = settings.name_of(topic)
    try:
        partitions = [
            TopicPartition(name, partition, OFFSET_BEGINNING)
            for partition in client.list_topics(name).topics[name].partitions
        ]
        client.assign(partitions)
        found: list[Message] = []
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = client.poll(PATIENCE)
            assert message is not None, f"{name} fell silent"
            if message.error():
                ended.add(int(message.partition() or 0))
            else:
                found.append(message)
        return sorted(found, key=lambda message: (message.partition(), message.offset()))
    finally:
        client.close()


def headers_of(message: Message) -> dict[str, bytes]:
    return {name: value if isinstance(value, bytes) else b"" for name, value in dict(message.headers() or ()).items()}


def records_of(settings: Settings, topic: Topic) -> list[Record]:
    """Every record of the topic, decoded, repeats included."""
    decode = decoder(topic, IDS)
    return [decode(value) for value in (message.value() for message in read_all(settings, topic)) if value is not None]


def effects_of(settings: Settings, topic: Topic) -> dict[str, Any]:
    """CloudEvents id to record: what a reader has that ignores what it has seen. Repeats must be equal to the byte."""
    decode = decoder(topic, IDS)
    values: dict[str, bytes] = {}
    for message in read_all(settings, topic):
        identity, value = headers_of(message)["ce_id"].decode(), bytes(message.value() or b"")
        assert value == values.setdefault(identity, value), f"{identity} was written twice, and not the same"
    return {identity: decode(value) for identity, value in values.items()}


def balances_of(settings: Settings) -> dict[str, Record]:
    """Card to balance: for each customer the record with the highest sequence."""
    balances: dict[str, Record] = {}
    for record in records_of(settings, LOYALTY_BALANCES):
        card = record["CustomerCardNo"]
        if record["Sequence"] > balances.get(card, {"Sequence": 0})["Sequence"]:
            balances[card] = record
    return balances
