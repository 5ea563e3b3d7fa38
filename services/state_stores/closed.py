"""The data of partitions that this instance has closed. They are deleted after ten minutes."""

import time
from collections.abc import Collection

import structlog

from services.state_stores.assignment import ChangelogPartition
from services.state_stores.contract import StorePartition

log = structlog.get_logger(__name__)

# The default of state.cleanup.delay.ms in Kafka Streams. A partition that comes back earlier needs no full restore.
_CLEANUP_SECONDS = 600.0


class ClosedPartitions:
    """Closed store partitions whose data are on disk. Only the materialiser's thread uses it.

    A closed store does not apply the deletions of erased customers, so its data must not stay on disk.
    """

    def __init__(self) -> None:
        self._stores: dict[ChangelogPartition, tuple[float, list[StorePartition]]] = {}

    def add(self, partition: ChangelogPartition, stores: list[StorePartition]) -> None:
        """Delete the data of these closed stores later, with stores of the partition that were added before."""
        _, earlier = self._stores.get(partition, (0.0, []))
        self._stores[partition] = (time.monotonic(), [*earlier, *stores])

    def discard(self, partition: ChangelogPartition) -> None:
        """Keep the data of this partition, because it is opened again."""
        self._stores.pop(partition, None)

    def delete_old(self, held: Collection[ChangelogPartition]) -> None:
        """Delete the data of partitions that were closed ten minutes ago or earlier, and that are not held again."""
        latest = time.monotonic() - _CLEANUP_SECONDS
        for partition, (closed_at, stores) in list(self._stores.items()):
            if closed_at > latest or partition in held:
                continue
            topic, number = partition
            try:
                # Delete the first store last: after a restart, its directories show which partitions have data.
                while stores:
                    stores[-1].destroy()
                    stores.pop()
            except OSError as error:
                log.warning("cannot delete a closed partition", topic=topic, partition=number, reason=str(error))
                self._stores[partition] = (time.monotonic(), stores)
            else:
                del self._stores[partition]
                log.info("data of a closed partition deleted", topic=topic, partition=number)
