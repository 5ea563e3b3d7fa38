"""A store as its readers see it: the partitions that this instance holds, whatever feeds them."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

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
    """The local partitions of one store. Tasks are added and removed by the materialiser's thread only.

    A derived store needs its source, whose partitions are opened before its own.

    Attributes:
        is_source: whether another store is derived from this one.
    """

    def __init__(self, definition: StoreDefinition, source: "StateStore | None" = None) -> None:
        if (definition.derived is None) != (source is None):
            raise ValueError(f"{definition.name}: a derived store has a source, and only a derived one")
        self.definition = definition
        self._source = source
        self.is_source = False
        if source:
            source.is_source = True
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
        return self.serving(self.partition_of(key)).get(key)

    def serving(self, partition: int) -> StoreTask:
        """The partition's task; raises NotServingError while it is restoring or elsewhere."""
        task = self._tasks.get(partition)
        if task is None or not task.progress.restored:
            raise NotServingError(partition, task)
        return task

    def read(self, partition: int, keys: AbstractSet[bytes]) -> Mapping[bytes, bytes | None]:
        """What is stored, restored or not; for the thread that writes."""
        return self._tasks[partition].read(keys)

    def add(self, task: StoreTask) -> None:
        task.is_source = self.is_source
        if source := self._source:
            # Looked up each time: the source's partition may be rebuilt while this one stays.
            task.source = lambda keys: source.read(task.partition, keys)
        self._tasks[task.partition] = task

    def remove(self, partition: int) -> StoreTask | None:
        return self._tasks.pop(partition, None)


def state_stores(definitions: Iterable[StoreDefinition]) -> dict[str, StateStore]:
    """Stores by name, each derived one with its source; in the order of the table."""
    stores: dict[str, StateStore] = {}
    for definition in definitions:
        source = stores[definition.derived.source] if definition.derived else None
        stores[definition.name] = StateStore(definition, source)
    return stores
