"""The materialiser: a thread that applies changelog records to the store partitions of this instance."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import structlog
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from services import tracing
from services.clock import boot_seconds
from services.errors import UserError
from services.messaging import clients
from services.messaging.administration import require_partitions
from services.messaging.log_reader import LogReader
from services.messaging.record_headers import headers_of
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.settings import Settings
from services.state_stores.assignment import Assignment, ChangelogPartition, Role
from services.state_stores.changelog import Changelog, EndOffsets, describe_changelogs, watermarks
from services.state_stores.closed import ClosedPartitions
from services.state_stores.contract import StoreCorruptError, StoreError, StoreFullError
from services.state_stores.store import Opener, StateStore, why_incomplete
from services.state_stores.task import ChangelogRecord, StoreTask
from services.state_stores.waiters import SequenceWaiters

log = structlog.get_logger(__name__)

CLIENT_ID = "loyalty-api-stores"

# Larger batches write faster. With smaller ones, /readyz shows the progress of a restore several times a second.
_BATCH_RECORDS = 10_000
_POLL_SECONDS = 0.2
# Longer than any step. A broker that does not answer delays a step by a few times five seconds.
_STALLED_SECONDS = 120.0
_LONGEST_SAVE_INTERVAL = timedelta(seconds=3)
# The interval is long, because confluent_kafka 2.16 loses about 100 bytes of memory for each topic that it describes.
_DESCRIPTION_SECONDS = 60.0
# An instance hands over only after another instance could take over for this time. If all instances share a disk, each
# of them saves a checkpoint within this time, finds that the disk is full and reports it. Then none hands over.
_FULL_SECONDS = 6.0


class Materialiser:
    """Opens and closes store partitions as the assignment says, and keeps them up to date.

    It reads partitions outside of any consumer group, so a copy stays as it is when the owner of its partition changes.
    The methods with a leading underscore run in its own thread. Other threads call only ``_are_restored`` and
    ``_tasks``.
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
        self._global_topics = {
            settings.name_of(each.definition.changelog) for each in stores if each.definition.is_global
        }
        self._settings = settings
        self._assignment = assignment
        self._waiters = waiters
        self._open_partition = open_partition
        self._observe_freshness = observe_freshness
        # Without the Schema Registry, a record with a new schema cannot be decoded. To skip it would lose a balance.
        retry_on = (StoreCorruptError, StoreFullError, SchemaRegistryUnavailableError)
        self._reader = LogReader(settings, CLIENT_ID, retry_on=retry_on)
        self._admin: AdminClient
        self._ends: EndOffsets
        self._changelogs: dict[str, Changelog] = {}
        self._roles: dict[ChangelogPartition, Role] = {}
        self._closed = ClosedPartitions()
        self._settled = False
        self._restored = self._ready = False
        self._next_save_time, self._next_description_time = 0.0, float("inf")
        # While the disk is full: since when another instance could take over (``time.monotonic``).
        self._full_since: float | None = None
        self._refused = ""
        self._thread = threading.Thread(target=self._run, name="materialiser", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leave the group, finish the current batch, disconnect from Kafka and close the stores."""
        self._assignment.leave()
        self._reader.stop()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def kafka_error(self) -> str | None:
        """Why the stores cannot follow their changelogs now, or why the group does not accept this instance."""
        if self._refused:
            return self._refused
        if not self.alive:
            return "the materialiser has stopped or hangs: restart this instance; its log has the reason"
        return self._reader.error or self._assignment.error

    @property
    def alive(self) -> bool:
        """Whether this thread makes progress, and the assignment is alive."""
        stalled = time.monotonic() - self._reader.last_step_time > _STALLED_SECONDS
        return self._thread.is_alive() and not stalled and self._assignment.alive

    @property
    def restored(self) -> bool:
        """Whether each partition that this instance owns was restored once after the start.

        It stays true. A partition that this instance takes over later is restored while the other partitions serve.
        """
        self._restored = self._restored or self._are_restored(Role.ACTIVE)
        return self._restored

    @property
    def ready(self) -> bool:
        """Whether all copies of this instance, standbys included, were restored once after the start.

        It stays true too. If an instance dies, all others may get new copies at the same time. They must stay reachable
        while they restore these copies.
        """
        self._ready = self._ready or self._are_restored(*Role)
        return self._ready

    def _are_restored(self, *roles: Role) -> bool:
        held = [partition for partition, role in list(self._roles.items()) if role in roles]
        return self._settled and all(task.progress.restored for each in held for task in self._tasks(each))

    def _tasks(self, partition: ChangelogPartition) -> list[StoreTask]:
        topic, number = partition
        return [task for store in self._stores[topic] if (task := store.tasks.get(number))]

    def _all_tasks(self) -> list[StoreTask]:
        return [task for partition in self._roles for task in self._tasks(partition)]

    def _run(self) -> None:
        try:
            self._reader.run(partial(self._step, self._connect), partial(self._step, self._poll_once))
        except UserError as error:
            self._refused = str(error)
            log.error("this instance does not use its stores", reason=self._refused)  # noqa: TRY400
        except Exception:
            log.exception("the materialiser has failed; restart the instance")
        finally:
            # After a failure the other instances must take over. After ``stop`` this call does nothing.
            self._assignment.leave()
            self._close_partitions(list(self._roles))

    def _step(self, step: Callable[[], None]) -> None:
        """Run a step. While the disk is full, keep the stores open for reads, unless another instance can take over.

        Raises StoreFullError if the step must be repeated. Raises StoreError if another instance must take over.
        """
        try:
            step()
        except StoreFullError as error:
            for task in self._all_tasks():
                # The copy no longer follows its changelog, so it must not serve as an active copy.
                task.progress.become(None, boot_seconds())
            if self._full_since is None or not self._assignment.can_hand_over:
                self._full_since = time.monotonic()
            elif time.monotonic() > self._full_since + _FULL_SECONDS:
                raise StoreError(f"{error}; another instance takes over") from error
            raise

    def _connect(self) -> None:
        """Check each open store against the broker, and continue to read from its position."""
        if self._full_since is not None:
            if self._assignment.settled:
                self._closed.delete_old(self._roles)  # it may free the space
            for task in self._all_tasks():
                task.write_again()
        self._admin = clients.admin(self._settings, CLIENT_ID)  # the former one may have lost all brokers
        self._ends = EndOffsets(self._admin)
        self._changelogs = self._describe_changelogs()
        self._next_description_time = time.monotonic() + _DESCRIPTION_SECONDS
        # Open stores before the instance joins the group. On a full disk this fails, and the other instances keep their
        # partitions.
        self._reader.consumer.assign(self._open_partitions(self._global_partitions() | self._roles))
        self._assignment.attach(
            {topic: log.partitions for topic, log in self._changelogs.items() if topic not in self._global_topics}
        )
        # A store does not serve while it is rebuilt. Requests that wait for it must ask another copy.
        self._waiters.notify_all()

    def _poll_once(self) -> None:
        self._follow_assignment()
        self._rebuild_damaged()
        self._maintain()
        self._apply_batch()
        self._full_since = None

    def _follow_assignment(self) -> None:
        """Open and close partitions and change roles, as the assignment says now."""
        settled = self._assignment.settled
        wanted = {**self._assignment.holdings(self._roles), **self._global_partitions()}
        if gone := [partition for partition in self._roles if partition not in wanted]:
            self._reader.consumer.incremental_unassign([TopicPartition(*partition) for partition in gone])
            self._close_partitions(gone)
        if new := {partition: role for partition, role in wanted.items() if partition not in self._roles}:
            self._reader.consumer.incremental_assign(self._open_partitions(new))
        self._change_roles({each: role for each, role in wanted.items() if self._roles[each] is not role})
        self._settled = self._settled or settled

    def _global_partitions(self) -> dict[ChangelogPartition, Role]:
        return {
            (topic, number): Role.ACTIVE
            for topic in self._global_topics
            for number in range(self._changelogs[topic].partitions)
        }

    def _rebuild_damaged(self) -> None:
        """Delete damaged stores and restore them. Other stores of their partitions stay open."""
        damaged = {
            partition: role
            for partition, role in self._roles.items()
            if any(task.store.damage for task in self._tasks(partition))
        }
        if damaged:
            self._ends.forget()
            self._reader.consumer.incremental_unassign([TopicPartition(*partition) for partition in damaged])
            self._reader.consumer.incremental_assign(self._open_partitions(damaged))
            self._waiters.notify_all()

    def _open_partitions(self, roles: Mapping[ChangelogPartition, Role]) -> list[TopicPartition]:
        """Open, or check again, the stores of these partitions. Returns the positions from which to read them."""
        # Register all partitions first. If one cannot be opened, ``_connect`` or the end of ``_run`` finds the others.
        self._roles |= roles
        starts, asked_at = [], boot_seconds()
        for (topic, number), (low, high) in watermarks(self._admin, roles).items():
            tasks = [
                store.open_task(
                    number, self._changelogs[topic], (low, high), self._open_partition, self._observe_freshness
                )
                for store in self._stores[topic]
            ]
            self._closed.discard((topic, number))
            for task in tasks:
                task.progress.become(high if roles[topic, number] is Role.ACTIVE else None, asked_at)
            # Stores of one changelog can have different positions. Each skips the records that it has applied.
            starts.append(TopicPartition(topic, number, min(task.progress.position for task in tasks)))
        return starts

    def _change_roles(self, roles: Mapping[ChangelogPartition, Role]) -> None:
        """Give open stores their new roles. They stay open and continue to read."""
        asked_at = boot_seconds()
        new_active = watermarks(self._admin, [partition for partition, role in roles.items() if role is Role.ACTIVE])
        for partition, role in roles.items():
            _, target = new_active.get(partition, (None, None))
            for task in self._tasks(partition):
                task.progress.become(target, asked_at)
            self._roles[partition] = role
            log.info("role changed", topic=partition[0], partition=partition[1], role=role)

    def _close_partitions(self, partitions: Collection[ChangelogPartition]) -> None:
        """Close the stores of these partitions. Their data stay for ten minutes: the partitions may come back."""
        for topic, number in partitions:
            self._roles.pop((topic, number), None)
            tasks = [task for store in self._stores[topic] if (task := store.remove(number))]
            for task in tasks:
                with suppress(StoreError):
                    task.save_checkpoint()
                task.store.close()
            self._closed.add((topic, number), [task.store for task in tasks])
        self._waiters.notify_all()

    def _maintain(self) -> None:
        """Note end offsets, save checkpoints, delete old data, and find stores that do not fit their changelogs."""
        for end in self._ends.poll(self._roles):
            for task in self._tasks(end.partition):
                task.note_end_offset(end.offset, end.asked_at, end.asked_time)
        for partition in self._roles:
            changelog = self._changelogs[partition[0]]
            for task in self._tasks(partition):
                task.expire(changelog.retention)
                reason = why_incomplete(task.caught_up_time, changelog.tombstone_retention)
                if reason and task.store.checkpoint:
                    # The next connect rebuilds the store.
                    raise StoreCorruptError(f"{task.definition.name} {partition[1]}: {reason}")
        if time.monotonic() >= self._next_description_time:
            self._next_description_time = time.monotonic() + _DESCRIPTION_SECONDS
            self._require_same_changelogs()
        if time.monotonic() >= self._next_save_time:
            if self._assignment.settled:
                self._closed.delete_old(self._roles)
            for task in self._all_tasks():
                task.save_checkpoint()
            interval = min(
                [_LONGEST_SAVE_INTERVAL, *(each.tombstone_retention / 10 for each in self._changelogs.values())]
            )
            self._next_save_time = time.monotonic() + interval.total_seconds()

    def _describe_changelogs(self) -> dict[str, Changelog]:
        """Describe all changelogs. Raises KafkaException. Raises UserError for a wrong number of partitions."""
        found = describe_changelogs(self._admin, self._stores)
        for topic, stores in self._stores.items():
            require_partitions(stores[0].definition.changelog, found[topic].partitions, self._settings)
        return found

    def _require_same_changelogs(self) -> None:
        """Raise StoreCorruptError if a changelog was deleted and created again. The next connect rebuilds its stores.

        A consumer gets no error if the new topic already has records at its position. It gets no error either if
        somebody adds partitions, but then the stores miss the records in these partitions: raises UserError.
        """
        try:
            found = self._describe_changelogs()
        except KafkaException as error:
            # The consumer may still work. If it does not, the reader reports the error.
            log.debug("the broker does not describe the changelogs", error=error.args[0].str())
            return
        for topic, changelog in found.items():
            if changelog.origin != self._changelogs[topic].origin:
                raise StoreCorruptError(f"topic {topic} was created again")
        self._changelogs = found  # an operator may have changed a retention

    def _apply_batch(self) -> None:
        batch = self._reader.read(_BATCH_RECORDS, _POLL_SECONDS)
        for (topic, number), messages in batch.records.items():
            records = [
                ChangelogRecord(message.offset() or 0, message.timestamp()[1], message.key(), message.value())
                for message in messages
            ]
            changelog = self._stores[topic][0].definition.changelog.name
            # A restore reads old records, whose traces have ended.
            traced = messages if self.restored else ()
            with tracing.batch(f"apply {changelog}", map(headers_of, traced)):
                for store in self._stores[topic]:
                    if task := store.tasks.get(number):
                        self._waiters.notify(task.apply(records))
                self._waiters.pass_on(changelog, records)
        for partition, offset in batch.ends.items():
            for task in self._tasks(partition):
                task.advance(offset)
        # Only partitions in this batch have a fresh end offset. For other partitions the reader may still have the end
        # offset of a topic that was deleted and created again.
        for partition in {*batch.records, *batch.ends}:
            end_offset = self._reader.end_offset(*partition)
            for task in self._tasks(partition):
                task.progress.end_offset = max(task.progress.end_offset, end_offset)


@dataclass(frozen=True, slots=True)
class LocalStores:
    """The stores of this process, the materialiser that updates them, and the requests that wait for them.

    Attributes:
        by_name: the stores that requests can read.
        internal: the stores that only the process itself reads, by name.
    """

    by_name: Mapping[str, StateStore]
    materialiser: Materialiser
    waiters: SequenceWaiters
    internal: Mapping[str, StateStore] = field(default_factory=dict)

    @property
    def all_by_name(self) -> Mapping[str, StateStore]:
        return {**self.by_name, **self.internal}
