"""The materialiser: a thread that follows the changelogs and keeps the local stores up to date."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition

from services.messaging import clients
from services.settings import Settings
from services.state_stores.assignment import Assignment
from services.state_stores.contract import StoreCorruptError, StorePartition
from services.state_stores.entry import FORMAT
from services.state_stores.store import Opener, StateStore
from services.state_stores.task import ChangelogRecord, Progress, StoreTask
from services.state_stores.waiters import SequenceWaiters

log = structlog.get_logger(__name__)

CLIENT_ID = "loyalty-api"

# Enough for the cost of a write to vanish beside the records, few enough that /readyz moves several times a second.
_BATCH_RECORDS = 10_000
_POLL_SECONDS = 0.2
_BROKER_SECONDS = 5.0
_PROBE_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
# Longer than any turn of the loop: a broker that does not answer costs a few times _BROKER_SECONDS.
_STALLED_SECONDS = 120.0


class ChangelogMismatchError(RuntimeError):
    """A changelog has another number of partitions than the catalogue says: keys would be looked up in wrong places."""


class Materialiser:
    """Feeds stores from their changelogs; opens and closes their partitions. Everything here runs in its own thread."""

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
        self._open_partition = open_partition
        self._assignment = assignment
        self._waiters = waiters
        self._observe_freshness = observe_freshness
        self._origins: dict[str, str] = {}
        self._attached = False
        self._assigned: frozenset[tuple[str, int]] | None = None
        self._stopping = threading.Event()
        self._last_turn = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="materialiser", daemon=True)
        self.kafka_error: str | None = None

    def start(self) -> None:
        self._last_turn = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Finish the batch in hand, close the stores, leave Kafka; returns when that is done."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread lives and turns."""
        return self._thread.is_alive() and time.monotonic() - self._last_turn < _STALLED_SECONDS

    @property
    def restored(self) -> bool:
        """Whether every assigned partition has once reached the end that its changelog had when it was taken."""
        assigned = self._assigned
        if assigned is None:
            return False
        tasks = [store.tasks.get(number) for topic, number in assigned for store in self._stores[topic]]
        return all(task is not None and task.progress.restored for task in tasks)

    def _run(self) -> None:
        consumer = self._consumer()
        pause = _FIRST_PAUSE_SECONDS
        try:
            while not self._stopping.is_set():
                self._last_turn = time.monotonic()
                try:
                    if not self._attached:
                        self._attach(consumer)
                    self._turn(consumer)
                    pause = _FIRST_PAUSE_SECONDS
                except (KafkaException, StoreCorruptError) as error:
                    # Attaching again checks every checkpoint against the broker and wipes what cannot be continued.
                    self._attached = False
                    self.kafka_error = str(error)
                    log.warning("following the changelogs was interrupted", error=str(error), retry_in_seconds=pause)
                    self._stopping.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except Exception:
            log.exception("the materialiser died")
        finally:
            self._close_all()
            consumer.close()

    def _consumer(self) -> Consumer:
        def note(error: KafkaError) -> None:
            self.kafka_error = error.str()

        # An offset that the broker does not have must surface: librdkafka's jump to the start would keep deleted keys.
        overrides = {"auto.offset.reset": "error", "error_cb": note}
        return clients.consumer(self._settings, CLIENT_ID, **overrides)  # type: ignore[arg-type]  # its types lack callbacks

    def _attach(self, consumer: Consumer) -> None:
        admin = clients.admin(self._settings, CLIENT_ID)
        descriptions = admin.describe_topics(TopicCollection(list(self._stores)), request_timeout=_BROKER_SECONDS)
        counts = {}
        for topic, future in descriptions.items():
            description = future.result()
            counts[topic] = len(description.partitions)
            for store in self._stores[topic]:
                if counts[topic] != store.definition.changelog.partitions:
                    raise ChangelogMismatchError(
                        f"topic {topic} has {counts[topic]} partitions, "
                        f"the catalogue says {store.definition.changelog.partitions}"
                    )
            self._origins[topic] = f"format {FORMAT} of topic {description.topic_id}"
        self._assignment.attach(consumer, counts, self)
        self._attached = True
        self.kafka_error = None

    def take(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Open (or re-check) the stores of these partitions; see ``PartitionOwner``."""
        partitions = list(partitions)
        # Before the first is opened: an instance that has opened one of three is not ready.
        self._assigned = (self._assigned or frozenset()) | _places(partitions)
        starts = []
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(partition, timeout=_BROKER_SECONDS)
            tasks = [self._open_task(store, partition, low, high) for store in self._stores[partition.topic]]
            # Stores of one changelog may be at different places: each skips what it has seen.
            start = min(task.progress.position for task in tasks)
            starts.append(TopicPartition(partition.topic, partition.partition, start))
        return starts

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Close the stores of these partitions; see ``PartitionOwner``."""
        partitions = list(partitions)
        self._assigned = (self._assigned or frozenset()) - _places(partitions)
        for partition in partitions:
            for store in self._stores[partition.topic]:
                if task := store.remove(partition.partition):
                    task.store.close()

    def _open_task(self, store: StateStore, partition: TopicPartition, low: int, high: int) -> StoreTask:
        number, origin = partition.partition, self._origins[partition.topic]
        task = store.tasks.get(number)
        if task and _why_rebuild(task.store, origin, low, high) is None:
            task.progress.end_offset = high
            return task
        store.remove(number)
        opened, reason = (task.store, None) if task else self._open_store(store, number)
        reason = reason or _why_rebuild(opened, origin, low, high)
        if reason:
            log.warning("store rebuilt from the start", store=store.definition.name, partition=number, reason=reason)
            opened.destroy()
            opened, _ = self._open_store(store, number)
        checkpoint = opened.checkpoint
        position = checkpoint.offset if checkpoint else low
        resumed_from = checkpoint.offset if checkpoint else None
        progress = Progress(resumed_from, position, position, high, high, rebuilt_because=reason)
        task = StoreTask(store.definition, number, opened, origin, progress, self._observe_freshness)
        store.add(task)
        return task

    def _open_store(self, store: StateStore, number: int) -> tuple[StorePartition, str | None]:
        try:
            return self._open_partition(store.definition.name, number), None
        except StoreCorruptError as error:
            return self._open_partition(store.definition.name, number), str(error)

    def _turn(self, consumer: Consumer) -> None:
        first = consumer.poll(_POLL_SECONDS)
        if first is None:
            self._idle(consumer)
            return
        # No waiting for more: what has arrived meanwhile is taken along, a lone record is applied at once.
        messages = [first, *consumer.consume(_BATCH_RECORDS - 1, 0)]
        records: defaultdict[tuple[str, int], list[ChangelogRecord]] = defaultdict(list)
        events: list[tuple[tuple[str, int], int, KafkaError]] = []
        for message in messages:
            # The types allow None for what only a message that is not from a consumer lacks.
            place, offset = cast(tuple[str, int], (message.topic(), message.partition())), cast(int, message.offset())
            if error := message.error():
                events.append((place, offset, error))
            else:
                records[place].append(ChangelogRecord(offset, message.timestamp()[1], message.key(), message.value()))
        for (topic, number), batch in records.items():
            self._apply(topic, number, batch)
        for place, offset, error in events:
            if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                raise KafkaException(error)
            self._reached_end(*place, offset)
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

    def _reached_end(self, topic: str, number: int, offset: int) -> None:
        for store in self._stores[topic]:
            if task := store.tasks.get(number):
                task.advance(offset)

    def _idle(self, consumer: Consumer) -> None:
        if self.kafka_error:
            # librdkafka reconnects by itself but says nothing when it has.
            topic = next(iter(self._stores))
            consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_PROBE_SECONDS)
            self.kafka_error = None
        self._note_end_offsets(consumer)

    def _note_end_offsets(self, consumer: Consumer) -> None:
        for topic, stores in self._stores.items():
            for store in stores:
                for number, task in store.tasks.items():
                    _, high = consumer.get_watermark_offsets(TopicPartition(topic, number), cached=True)
                    task.progress.end_offset = max(task.progress.end_offset, high)

    def _close_all(self) -> None:
        for stores in self._stores.values():
            for store in stores:
                for number in store.tasks:
                    if task := store.remove(number):
                        task.store.close()


def _places(partitions: Iterable[TopicPartition]) -> frozenset[tuple[str, int]]:
    return frozenset((partition.topic, partition.partition) for partition in partitions)


def _why_rebuild(store: StorePartition, origin: str, low: int, high: int) -> str | None:
    """Why a store's data cannot be continued from its changelog, or None if it can."""
    checkpoint = store.checkpoint
    if checkpoint is None:
        return None
    if checkpoint.origin != origin:
        return f"it was made of {checkpoint.origin}, the changelog is {origin}"
    if not low <= checkpoint.offset <= high:
        return f"its offset {checkpoint.offset} is outside of the changelog's {low} to {high}"
    return None
