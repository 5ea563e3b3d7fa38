"""Dispatchers of an endpoint, with a reader in place of Kafka."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import pytest
from confluent_kafka import KafkaError, TopicPartition
from prometheus_client import CollectorRegistry

from schemas import topics
from services.domain.entries import Kind
from services.messaging.avro import encoder
from services.messaging.dead_letters import RecordPosition
from services.messaging.log_reader import Batch
from services.settings import Settings
from services.webhooks import group_reader
from services.webhooks.dead_letters import DeadLetterWriter
from services.webhooks.dispatcher import EndpointDispatcher
from services.webhooks.endpoints import Endpoint
from services.webhooks.message import Message
from services.webhooks.metrics import Metrics
from tests.support.builders import IDS, entry, notification

ENDPOINT = Endpoint("crm", "http://crm.example", (b"x" * 24,), frozenset(Kind))
STUCK = "stuck"
TOPIC = Settings().name_of(topics.LOYALTY)


class Record:
    """A record of a customer."""

    def __init__(self, partition: int, offset: int, card: str) -> None:
        self.position = RecordPosition(partition, offset)
        self.card = card

    def partition(self) -> int:
        return self.position.partition

    def offset(self) -> int:
        return self.position.offset

    def key(self) -> bytes:
        return self.card.encode()

    def headers(self) -> None:
        """It has none."""

    def timestamp(self) -> tuple[int, int]:
        return 1, 1

    def value(self) -> bytes:
        return encoder(topics.LOYALTY, IDS)(notification(self.card, entry(self.position.offset + 1)))


class Reader:
    """Reader and consumer: partitions with records, which can be paused, and the committed offsets."""

    def __init__(self, partitions: dict[int, list[str]]) -> None:
        self._partitions = {
            number: [Record(number, offset, card) for offset, card in enumerate(cards)]
            for number, cards in partitions.items()
        }
        self.consumer = self
        self.read_count: defaultdict[int, int] = defaultdict(int)
        self.committed: defaultdict[int, int] = defaultdict(int)
        self.paused: set[int] = set()
        self.max_uncommitted = 0
        self.commits_fail = False
        self.on_commit: Callable[[KafkaError | None, list[TopicPartition]], None]
        self._asked: list[list[TopicPartition]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer_commits()

    def read(self, _: int, seconds: float) -> Batch:
        self._answer_commits()
        for number, records in self._partitions.items():
            if number not in self.paused and self.read_count[number] < len(records):
                record = records[self.read_count[number]]
                self.read_count[number] += 1
                self.max_uncommitted = max(self.max_uncommitted, self.read_count[number] - self.committed[number])
                return Batch({(TOPIC, number): [cast(Any, record)]}, {})
        threading.Event().wait(min(seconds, 0.01))
        return Batch({}, {})

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        assert asynchronous
        self._asked.append(offsets)

    def _answer_commits(self) -> None:
        """As in librdkafka, a later call has the answer."""
        asked, self._asked = self._asked, []
        for offsets in asked:
            if self.commits_fail:
                self.on_commit(KafkaError(KafkaError._TIMED_OUT), offsets)
                continue
            for each in offsets:
                self.committed[each.partition] = each.offset
            self.on_commit(None, offsets)

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= {each.partition for each in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {each.partition for each in partitions}

    def subscribe(self, *_: object, **__: object) -> None: ...

    def renew(self) -> bool:
        return False

    def assignment(self) -> list[TopicPartition]:
        return []


class Group(Reader):
    """A reader whose partitions move. As in librdkafka, a callback of a rebalance runs inside of a read."""

    def __init__(self, partitions: dict[int, list[str]]) -> None:
        super().__init__(partitions)
        self.rebalances: list[Callable[[], None]] = []

    def subscribe(self, *_: object, on_assign: Any, on_revoke: Any, **__: object) -> None:
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def read(self, most: int, seconds: float) -> Batch:
        while self.rebalances:
            self.rebalances.pop(0)()
        return super().read(most, seconds)


def use(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a group reader use this reader."""

    def reader_of(*_: object, on_commit: Any, **__: object) -> Reader:
        reader.on_commit = on_commit
        return reader

    monkeypatch.setattr(group_reader, "LogReader", reader_of)


@asynccontextmanager
async def dispatching(
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    dead_letters: Any = None,
    registry: CollectorRegistry | None = None,
    send: Callable[[Message], Awaitable[None]] | None = None,
    endpoint: Endpoint = ENDPOINT,
) -> AsyncIterator[tuple[asyncio.Event, list[str]]]:
    """Run a dispatcher, for a minute at most. Yields an event for which deliveries of STUCK wait, and the delivered
    ids.
    """
    metrics = Metrics(registry or CollectorRegistry())
    use(reader, monkeypatch)
    delivered: list[str] = []
    released, stopping = asyncio.Event(), threading.Event()

    async def deliver(message: Message) -> None:
        if f'"CustomerCardNo":"{STUCK}"'.encode() in message.body:
            await released.wait()
        if send is not None:
            await send(message)
        delivered.append(message.identity)

    letters = cast(DeadLetterWriter, dead_letters)
    each = EndpointDispatcher(endpoint, Settings(), IDS, deliver, letters, metrics)
    running = asyncio.create_task(each.run(stopping))
    try:
        async with asyncio.timeout(60):
            yield released, delivered
    finally:
        stopping.set()
        await running


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the reader's thread changes it
        await asyncio.sleep(0.01)
