"""A materialiser without a broker. The test sets its assignment, and where its changelog begins and ends."""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from services.clock import boot_seconds
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.assignment import ChangelogPartition, Role
from services.state_stores.changelog import Changelog, EndOffsets
from services.state_stores.contract import Checkpoint, StorePartition
from services.state_stores.materialiser import Materialiser
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import StateStore
from services.state_stores.waiters import SequenceWaiters

TOPIC = "loyalty-balances"
RETENTION = timedelta(hours=1)
DEFINITION = catalogue.stores(FolderSchemaIds())[0]


class Broker:
    """The admin client and the consumer of a materialiser.

    It notes when it was asked for offsets, and the positions from which partitions are read.
    """

    def __init__(self, low: int, high: int) -> None:
        self.answer = (low, high)
        self.asked_at = 0.0
        self.reads: dict[int, int] = {}

    def list_topics(self, topic: str, **_: object) -> SimpleNamespace:
        leaders = {number: SimpleNamespace(leader=1) for number in range(3)}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=leaders)})

    def list_offsets(
        self, asked: Mapping[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        self.asked_at = boot_seconds()
        found: dict[TopicPartition, Future[Any]] = {partition: Future() for partition in asked}
        for partition, spec in asked.items():
            is_latest = isinstance(spec, type(OffsetSpec.latest()))  # type: ignore[no-untyped-call]
            found[partition].set_result(SimpleNamespace(offset=self.answer[is_latest]))
        return found

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.reads = {each.partition: each.offset for each in partitions}

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.reads |= {each.partition: each.offset for each in partitions}

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            del self.reads[each.partition]


class FixedAssignment:
    """An assignment that the test sets."""

    def __init__(self) -> None:
        self.roles: dict[ChangelogPartition, Role] = {}
        self.settled = True
        self.alive = True
        self.error: str | None = None
        self.attached = self.left = False
        self.can_hand_over = False

    def attach(self, topics: Mapping[str, int]) -> None:
        self.attached = True

    def leave(self) -> None:
        self.left = True

    def holdings(self, held: Collection[ChangelogPartition]) -> Mapping[ChangelogPartition, Role]:
        return dict(self.roles)

    def give(self, *partitions: int, role: Role = Role.ACTIVE) -> None:
        self.roles |= {(TOPIC, number): role for number in partitions}


def stored(offset: int, origin: str = "here", age: timedelta = timedelta(0)) -> StorePartition:
    return made_of(DEFINITION.origin(origin), offset, age)


def made_of(origin: str, offset: int, age: timedelta = timedelta(0)) -> StorePartition:
    partition = MemoryStorePartition()
    caught_up_time = int((time.time() - age.total_seconds()) * 1000)
    partition.apply({b"old": b"x"}, Checkpoint(origin, offset, caught_up_time))
    return partition


class Scene:
    """A materialiser that opens these stores in turn, and notes whether it is ready. The origin is ``here``."""

    def __init__(self, *opened: StorePartition, low: int = 0, high: int = 0) -> None:
        self._left = list(opened)
        self.ready: list[bool] = []
        self.store = StateStore(DEFINITION)
        self.assignment = FixedAssignment()
        self.waiters = SequenceWaiters()
        self.broker = Broker(low, high)
        self.materialiser = Materialiser(
            [self.store],
            Settings(),
            open_partition=self._open,
            assignment=self.assignment,
            waiters=self.waiters,
        )
        self.materialiser._admin = cast(AdminClient, self.broker)
        self.materialiser._ends = EndOffsets(self.materialiser._admin)
        self.changelog_is("here")

    def _open(self, *_: object) -> StorePartition:
        self.ready.append(self.materialiser.restored)
        return self._left.pop(0)

    def changelog_is(self, origin: str) -> None:
        self.materialiser._changelogs[TOPIC] = Changelog(origin, 3, RETENTION)

    def follow(self) -> dict[int, int]:
        self.materialiser._reader.consumer = cast(Consumer, self.broker)
        self.materialiser._follow_assignment()
        return self.broker.reads

    def take(self, *partitions: int, role: Role = Role.ACTIVE) -> dict[int, int]:
        """The group gives the materialiser these partitions, too. Returns the positions from which it reads."""
        self.assignment.give(*partitions, role=role)
        return self.follow()

    def reconnect(self) -> list[int]:
        starts = self.materialiser._open_partitions(self.materialiser._roles)
        return [start.offset for start in starts]

    def connect(self, monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
        """Connect again, after an error. The changelog has this origin now."""
        self.describes(monkeypatch, origin)
        monkeypatch.setattr("services.messaging.clients.admin", lambda *_: self.broker)
        self.materialiser._connect()

    def describes(self, monkeypatch: pytest.MonkeyPatch, origin: str, retention: int = -1, partitions: int = 3) -> None:
        """Let the broker describe a changelog of this origin, with this retention and this number of partitions."""
        changelogs = {TOPIC: Changelog(origin, partitions, RETENTION, retention)}
        monkeypatch.setattr("services.state_stores.materialiser.describe_changelogs", lambda *_: changelogs)

    def maintain(self) -> None:
        self.materialiser._next_save_time = 0.0
        self.materialiser._maintain()
