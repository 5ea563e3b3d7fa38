"""Opens, reads and removes the partitions of a store that this instance holds."""

import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta

import structlog
from confluent_kafka import murmur2

from services.clock import now
from services.settings import PARTITIONS
from services.state_stores.changelog import Changelog
from services.state_stores.contract import Checkpoint, StoreCorruptError, StoredValues, StorePartition
from services.state_stores.definition import StoreDefinition, VersionedValue
from services.state_stores.task import StoreTask, TaskProgress

log = structlog.get_logger(__name__)

# The rest of the retention is for the duration of a restore, and for the difference between the clocks of the broker
# and of this machine.
_USABLE_SHARE_OF_RETENTION = 0.9

Opener = Callable[[str, int], StorePartition]
"""Opens the storage of a store (name) and a partition. Raises StoreCorruptError after it has deleted damaged data."""


class NotServingError(LookupError):
    """This instance cannot read the partition now.

    Attributes:
        partition: the number of the partition.
        task: its task while it restores or is damaged; None if this instance does not hold the partition.
    """

    def __init__(self, partition: int, task: StoreTask | None) -> None:
        super().__init__(f"partition {partition} is {'restoring' if task else 'not on this instance'}")
        self.partition = partition
        self.task = task


class StateStore:
    """The local partitions of one store. Only the materialiser's thread opens, adds and removes tasks.

    A derived store needs its source. The materialiser opens the partitions of the source first.

    Attributes:
        partitions: the number of partitions of the changelog.
        has_derived: whether another store is derived from this one.
    """

    def __init__(
        self, definition: StoreDefinition, source: "StateStore | None" = None, partitions: int = PARTITIONS
    ) -> None:
        if (definition.derived is None) != (source is None):
            raise ValueError(f"{definition.name}: a derived store needs a source, and other stores must not have one")
        self.definition = definition
        self.partitions = definition.changelog.partitions or partitions
        self._source = source
        self.has_derived = False
        if source:
            source.has_derived = True
        self._tasks: dict[int, StoreTask] = {}

    @property
    def tasks(self) -> Mapping[int, StoreTask]:
        """A snapshot of the tasks by partition."""
        return dict(self._tasks)

    def partition_of(self, key: bytes) -> int:
        """The partition of the key by Kafka's default partitioner (murmur2), which all producers of the topic use."""
        return murmur2(key, self.partitions)

    def get(self, key: bytes) -> VersionedValue | None:
        """The value of a key; None if the key does not exist.

        Raises NotServingError if the partition is restoring, damaged or not on this instance. Raises StoreClosedError
        if the partition closes during the read. Raises StoreCorruptError if this read finds damage: the next read
        raises NotServingError.
        """
        return self.serving(self.partition_of(key)).get(key)

    def serving(self, partition: int) -> StoreTask:
        """The task of the partition. Raises NotServingError if it is restoring, damaged or not on this instance."""
        task = self._tasks.get(partition)
        if task is None or not task.serving:
            raise NotServingError(partition, task)
        return task

    def read(self, partition: int, keys: AbstractSet[bytes]) -> StoredValues:
        """The stored values of the keys, even before the restore ends. Only the materialiser's thread calls it."""
        return self._tasks[partition].read(keys)

    def open_task(
        self,
        partition: int,
        changelog: Changelog,
        watermarks: tuple[int, int],
        open_partition: Opener,
        observe_freshness: Callable[[float], None] = lambda seconds: None,
    ) -> StoreTask:
        """Add the task of a partition. It keeps the local data if they match the changelog, and deletes them if not.

        The method also checks a task that is already open. It returns the same task if its data match.

        Args:
            watermarks: the first offset of the changelog partition, and its end offset.
            observe_freshness: takes the age in seconds of each new value.
        """
        origin = self.definition.origin(changelog.origin)
        low, high = watermarks
        if task := self._tasks.get(partition):
            storage = task.store
            reason = storage.damage or _why_rebuild(_current_checkpoint(task), origin, changelog, low, high)
            if reason is None:
                task.progress.end_offset = high
                return task
            self.remove(partition)
        else:
            storage, reason = self._open_storage(open_partition, partition)
            reason = reason or _why_rebuild(storage.checkpoint, origin, changelog, low, high)
        if reason:
            log.warning("store rebuilt from its changelog", store=self.definition.name, partition=partition, why=reason)
            storage.destroy()
            storage, _ = self._open_storage(open_partition, partition)
        checkpoint = storage.checkpoint
        resumed_from = checkpoint.offset if checkpoint else None
        position = checkpoint.offset if checkpoint else low
        rebuilt_at = time.time() if reason else 0.0
        progress = TaskProgress(resumed_from, position, position, high, high, reason, rebuilt_at)
        task = StoreTask(self.definition, partition, storage, origin, progress, observe_freshness)
        if checkpoint:
            task.caught_up_time = checkpoint.caught_up_time
        self.add(task)
        return task

    def _open_storage(self, open_partition: Opener, partition: int) -> tuple[StorePartition, str | None]:
        try:
            return open_partition(self.definition.name, partition), None
        except StoreCorruptError as error:
            return open_partition(self.definition.name, partition), str(error)

    def add(self, task: StoreTask) -> None:
        task.has_derived = self.has_derived
        if source := self._source:
            # Each call looks up the task of the source, because a rebuild replaces it.
            task.read_source = lambda keys: source.read(task.partition, keys)
        self._tasks[task.partition] = task

    def remove(self, partition: int) -> StoreTask | None:
        return self._tasks.pop(partition, None)


def state_stores(definitions: Iterable[StoreDefinition], partitions: int = PARTITIONS) -> dict[str, StateStore]:
    """Stores by name, in the order of the definitions. Each derived store gets its source.

    Args:
        partitions: of changelogs without a fixed number of partitions.
    """
    stores: dict[str, StateStore] = {}
    for definition in definitions:
        source = stores[definition.derived.source] if definition.derived else None
        stores[definition.name] = StateStore(definition, source, partitions)
    return stores


def why_incomplete(caught_up_time: int, tombstone_retention: timedelta) -> str | None:
    """Why a store may differ from its changelog (see ``Checkpoint`` and ``Changelog``); None if it cannot."""
    age = timedelta(milliseconds=now() - caught_up_time)
    complete = f"the store was last complete at {caught_up_time} ms"
    if age > _USABLE_SHARE_OF_RETENTION * tombstone_retention:
        return f"{complete}, and the changelog drops deletions after {int(tombstone_retention.total_seconds())} s"
    if age < -_USABLE_SHARE_OF_RETENTION * tombstone_retention:
        return f"{complete}, which is in the future: while the clock was wrong, live values can have expired"
    return None


def _current_checkpoint(task: StoreTask) -> Checkpoint | None:
    """The checkpoint with the task's caught-up time, which may be newer than the one that was written."""
    checkpoint = task.store.checkpoint
    return checkpoint and Checkpoint(checkpoint.origin, checkpoint.offset, task.caught_up_time)


def _why_rebuild(checkpoint: Checkpoint | None, origin: str, changelog: Changelog, low: int, high: int) -> str | None:
    """Why the local data cannot be continued from the changelog; None if they can."""
    if checkpoint is None:
        return None
    if checkpoint.origin != origin:
        return f"the data come from {checkpoint.origin}, but the changelog is {origin}"
    if not low <= checkpoint.offset <= high:
        return f"the checkpoint's offset {checkpoint.offset} is outside of the changelog's offsets {low} to {high}"
    return why_incomplete(checkpoint.caught_up_time, changelog.tombstone_retention)
