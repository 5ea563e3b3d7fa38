"""A store as its readers see it: the partitions that this instance holds, whatever feeds them."""

from collections.abc import Callable, Mapping

from confluent_kafka import murmur2

from services.state_stores.contract import StorePartition
from services.state_stores.definition import StoreDefinition
from services.state_stores.entry import Entry
from services.state_stores.task import StoreTask

Opener = Callable[[str, int], StorePartition]
"""(store name, partition) to an open store partition; raises StoreCorruptError where only wiping helps."""


class NotServingError(LookupError):
    """This instance cannot answer for the key now.

    Attributes:
        task: the partition while it restores; None when this instance does not hold it.
    """

    def __init__(self, partition: int, task: StoreTask | None) -> None:
        super().__init__(f"partition {partition} is {'restoring' if task else 'not on this instance'}")
        self.partition = partition
        self.task = task


class StateStore:
    """The local partitions of one store. Tasks are added and removed by the materialiser's thread only."""

    def __init__(self, definition: StoreDefinition) -> None:
        self.definition = definition
        self._tasks: dict[int, StoreTask] = {}

    @property
    def tasks(self) -> Mapping[int, StoreTask]:
        """Partition to task, of one moment."""
        return dict(self._tasks)

    def partition_of(self, key: bytes) -> int:
        """Where Kafka's default partitioner (murmur2: Java, Spark, and our own producers) puts the key."""
        return murmur2(key, self.definition.changelog.partitions)

    def get(self, key: bytes) -> Entry | None:
        """The entry of a key; None for a key that the store does not have.

        Raises NotServingError while the key's partition is restoring or elsewhere, StoreClosedError if it just leaves.
        """
        partition = self.partition_of(key)
        task = self._tasks.get(partition)
        if task is None or not task.progress.restored:
            raise NotServingError(partition, task)
        stored = task.store.get(key)
        return None if stored is None else Entry.unpack(stored)

    def add(self, task: StoreTask) -> None:
        self._tasks[task.partition] = task

    def remove(self, partition: int) -> StoreTask | None:
        return self._tasks.pop(partition, None)
