"""The materialiser: a thread that follows the changelogs and keeps the local stores up to date."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import cast

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from services.messaging import clients
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.settings import Settings
from services.state_stores.assignment import Assignment, Place, Role
from services.state_stores.changelog import Changelog, EndOffsets, describe_changelogs, watermarks
from services.state_stores.contract import StoreCorruptError, StoreError
from services.state_stores.opening import TaskOpener, has_missed_deletions
from services.state_stores.store import Opener, StateStore
from services.state_stores.task import ChangelogRecord, StoreTask
from services.state_stores.waiters import SequenceWaiters

log = structlog.get_logger(__name__)

CLIENT_ID = "loyalty-api-stores"

# Enough for the cost of a write to vanish beside the records, few enough that /readyz moves several times a second.
_BATCH_RECORDS = 10_000
_POLL_SECONDS = 0.2
_PROBE_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
# Longer than any turn of the loop: a broker that does not answer costs a few times five seconds.
_STALLED_SECONDS = 120.0
_LONGEST_TOUCH_INTERVAL = timedelta(seconds=30)


class ChangelogMismatchError(RuntimeError):
    """A changelog has another number of partitions than the catalogue says: keys would be looked up in wrong places."""


class Materialiser:
    """Feeds stores from their changelogs; opens and closes their partitions. Everything here runs in its own thread.

    It reads every partition by itself, outside of any group: whoever owns a partition, its copy here goes on as it is.
    """

    def __init__(
        self,
        stores: Sequence[StateStore],
        settings: Settings,
        *,
        open_partition: Opener,
        assignment: Assignment,
        waiters: SequenceWaiters,
        observe_freshness: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._stores: defaultdict[str, list[StateStore]] = defaultdict(list)
        for store in stores:
            self._stores[settings.name_of(store.definition.changelog)].append(store)
        self._settings = settings
        self._assignment = assignment
        self._waiters = waiters
        self._opener = TaskOpener(open_partition, observe_freshness)
        self._changelogs: dict[str, Changelog] = {}
        self._held: dict[Place, Role] = {}
        self._attached = False
        self._settled = False
        self._ready = False
        self._next_touch = 0.0
        self._stopping = threading.Event()
        self._last_turn = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="materialiser", daemon=True)
        self.kafka_error: str | None = None

    def start(self) -> None:
        self._last_turn = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Leave the group, finish the batch in hand, close the stores, leave Kafka; returns when that is done."""
        self._assignment.leave()
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread lives and turns, and what decides on its partitions lives."""
        turns = self._thread.is_alive() and time.monotonic() - self._last_turn < _STALLED_SECONDS
        return turns and self._assignment.alive

    @property
    def restored(self) -> bool:
        """Whether every partition of this instance has once reached the end that its changelog had when it was taken.

        Once true it stays so: what is taken over later is restored beside the answering.
        """
        self._ready = self._ready or (self._settled and all(task.progress.restored for task in self._own_tasks()))
        return self._ready

    def _own_tasks(self) -> list[StoreTask]:
        own = [place for place, role in list(self._held.items()) if role is Role.ACTIVE]
        return [task for place in own for task in self._tasks(place)]

    def _tasks(self, place: Place) -> list[StoreTask]:
        topic, number = place
        return [task for store in self._stores[topic] if (task := store.tasks.get(number))]

    def _run(self) -> None:
        consumer = self._consumer()
        admin = clients.admin(self._settings, CLIENT_ID)
        ends = EndOffsets(admin)
        pause = _FIRST_PAUSE_SECONDS
        try:
            while not self._stopping.is_set():
                self._last_turn = time.monotonic()
                try:
                    if not self._attached:
                        self._attach(consumer, admin)
                    self._reconcile(consumer, admin)
                    self._tend(ends)
                    self._turn(consumer)
                    pause = _FIRST_PAUSE_SECONDS
                # Without its schema a record cannot be read, and skipping it would lose a balance.
                except (KafkaException, StoreCorruptError, SchemaRegistryUnavailableError) as error:
                    # Attaching again checks every checkpoint against the broker and wipes what cannot be continued.
                    self._attached = False
                    self.kafka_error = str(error)
                    log.warning("following the changelogs was interrupted", error=str(error), retry_in_seconds=pause)
                    self._stopping.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except Exception:
            log.exception("the materialiser died")
        finally:
            self._give_up(list(self._held))
            consumer.close()

    def _consumer(self) -> Consumer:
        def note(error: KafkaError) -> None:
            self.kafka_error = error.str()

        # An offset that the broker does not have must surface: librdkafka's jump to the start would keep deleted keys.
        overrides: dict[str, clients.Option] = {"auto.offset.reset": "error", "error_cb": note}
        return clients.consumer(self._settings, CLIENT_ID, **overrides)

    def _attach(self, consumer: Consumer, admin: AdminClient) -> None:
        self._changelogs = describe_changelogs(admin, self._stores)
        for topic, stores in self._stores.items():
            found, expected = self._changelogs[topic].partitions, stores[0].definition.changelog.partitions
            if found != expected:
                raise ChangelogMismatchError(f"topic {topic} has {found} partitions, the catalogue says {expected}")
        consumer.assign(self._take(admin, self._held))
        self._assignment.attach(
            {topic: log.partitions for topic, log in self._changelogs.items() if not self._is_global(topic)}
        )
        self._attached = True
        self.kafka_error = None

    def _is_global(self, topic: str) -> bool:
        return any(store.definition.is_global for store in self._stores[topic])

    def _reconcile(self, consumer: Consumer, admin: AdminClient) -> None:
        """Open what this instance is to hold by now, close what it is not, and note who owns it."""
        settled = self._assignment.settled
        wanted = dict(self._assignment.holdings(self._held))
        for topic in filter(self._is_global, self._stores):
            wanted |= {(topic, number): Role.ACTIVE for number in range(self._changelogs[topic].partitions)}
        if gone := [place for place in self._held if place not in wanted]:
            consumer.incremental_unassign([TopicPartition(*place) for place in gone])
            self._give_up(gone)
        if new := {place: role for place, role in wanted.items() if place not in self._held}:
            consumer.incremental_assign(self._take(admin, new))
        self._change_roles(admin, {place: role for place, role in wanted.items() if self._held[place] is not role})
        self._settled = self._settled or settled

    def _take(self, admin: AdminClient, places: dict[Place, Role]) -> list[TopicPartition]:
        """Open (or re-check) the stores of these partitions; returns them with the offsets to read from."""
        # Before the first is opened: an instance that has opened one of three is not ready, and must close that one.
        self._held |= places
        starts = []
        for (topic, number), (low, high) in watermarks(admin, places).items():
            tasks = [
                self._opener.open(store, number, self._changelogs[topic], low, high) for store in self._stores[topic]
            ]
            for task in tasks:
                task.progress.active_target = high if places[topic, number] is Role.ACTIVE else None
            # Stores of one changelog may be at different places: each skips what it has seen.
            starts.append(TopicPartition(topic, number, min(task.progress.position for task in tasks)))
        return starts

    def _change_roles(self, admin: AdminClient, roles: dict[Place, Role]) -> None:
        """Open stores become what they are by now: nothing is closed, nothing is read again."""
        taken_over = watermarks(admin, [place for place, role in roles.items() if role is Role.ACTIVE])
        for place, role in roles.items():
            _, target = taken_over.get(place, (None, None))
            for task in self._tasks(place):
                task.progress.active_target = target
            self._held[place] = role
            log.info("role changed", topic=place[0], partition=place[1], role=role)

    def _give_up(self, places: Collection[Place]) -> None:
        """Close the stores of these partitions; their data stays on disk for a return."""
        for topic, number in places:
            self._held.pop((topic, number), None)
            for store in self._stores[topic]:
                if task := store.remove(number):
                    with suppress(StoreError):
                        task.touch()
                    task.store.close()
        self._waiters.notify_all()

    def _tend(self, ends: EndOffsets) -> None:
        """Note where the changelogs end, and keep the stores from growing old, or from being kept when they have."""
        for end in ends.poll(self._held):
            for task in self._tasks(end.place):
                task.note_end(end.offset, end.asked_at, end.asked_time)
        for place in self._held:
            retention = self._changelogs[place[0]].tombstone_retention
            for task in self._tasks(place):
                if task.store.checkpoint and has_missed_deletions(task.caught_up_time, retention):
                    raise StoreCorruptError(f"{task.definition.name} {place[1]} has lagged for too long")
        if time.monotonic() >= self._next_touch:
            for place in self._held:
                for task in self._tasks(place):
                    task.touch()
            interval = min(
                [_LONGEST_TOUCH_INTERVAL, *(log.tombstone_retention / 10 for log in self._changelogs.values())]
            )
            self._next_touch = time.monotonic() + interval.total_seconds()

    def _turn(self, consumer: Consumer) -> None:
        first = consumer.poll(_POLL_SECONDS)
        if first is None:
            self._idle(consumer)
            return
        # No waiting for more: what has arrived meanwhile is taken along, a lone record is applied at once.
        messages = [first, *consumer.consume(_BATCH_RECORDS - 1, 0)]
        records: defaultdict[Place, list[ChangelogRecord]] = defaultdict(list)
        events: list[tuple[Place, int, KafkaError]] = []
        for message in messages:
            # The types allow None for what only a message that is not from a consumer lacks.
            place, offset = cast(Place, (message.topic(), message.partition())), cast(int, message.offset())
            if error := message.error():
                events.append((place, offset, error))
            else:
                records[place].append(ChangelogRecord(offset, message.timestamp()[1], message.key(), message.value()))
        for place, batch in records.items():
            self._apply(*place, batch)
        for place, offset, error in events:
            if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                raise KafkaException(error)
            for task in self._tasks(place):
                task.advance(offset)
        self.kafka_error = None
        self._note_end_offsets(consumer)

    def _apply(self, topic: str, number: int, batch: list[ChangelogRecord]) -> None:
        for store in self._stores[topic]:
            if task := store.tasks.get(number):
                try:
                    written = task.apply(batch)
                except StoreCorruptError:
                    store.remove(number)
                    task.store.destroy()
                    raise
                self._waiters.notify(written)

    def _idle(self, consumer: Consumer) -> None:
        if self.kafka_error:
            # librdkafka reconnects by itself but says nothing when it has.
            topic = next(iter(self._stores))
            consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_PROBE_SECONDS)
            self.kafka_error = None
        self._note_end_offsets(consumer)

    def _note_end_offsets(self, consumer: Consumer) -> None:
        for place in self._held:
            _, high = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            for task in self._tasks(place):
                task.progress.end_offset = max(task.progress.end_offset, high)
