"""Opening a store's partition: what is on disk is continued where that is right, and thrown away where it is not."""

import time
from collections.abc import Callable
from datetime import timedelta

import structlog

from services.state_stores.changelog import Changelog
from services.state_stores.contract import Checkpoint, StoreCorruptError, StorePartition
from services.state_stores.store import Opener, StateStore
from services.state_stores.task import Progress, StoreTask

log = structlog.get_logger(__name__)

# The restore itself takes time, and the broker's clock is not this machine's.
_USABLE_SHARE_OF_RETENTION = 0.9


class TaskOpener:
    """Makes tasks out of store partitions."""

    def __init__(self, open_partition: Opener, observe_freshness: Callable[[float], None]) -> None:
        self._open_partition = open_partition
        self._observe_freshness = observe_freshness

    def open(self, store: StateStore, number: int, changelog: Changelog, low: int, high: int) -> StoreTask:
        """The task of a store's partition whose changelog has the offsets from ``low`` to below ``high``.

        A task that is open stays as it is, if it can; the store has it either way.
        """
        origin = store.definition.origin(changelog.origin)
        task = store.tasks.get(number)
        if task and _why_rebuild(_checkpoint_of(task), origin, changelog, low, high) is None:
            task.progress.end_offset = high
            return task
        store.remove(number)
        opened, reason = (task.store, None) if task else self._open_store(store, number)
        checkpoint = _checkpoint_of(task) if task else opened.checkpoint
        reason = reason or _why_rebuild(checkpoint, origin, changelog, low, high)
        if reason:
            log.warning("store rebuilt from the start", store=store.definition.name, partition=number, reason=reason)
            opened.destroy()
            opened, _ = self._open_store(store, number)
        checkpoint = opened.checkpoint
        position = checkpoint.offset if checkpoint else low
        resumed_from = checkpoint.offset if checkpoint else None
        progress = Progress(resumed_from, position, position, high, high, rebuilt_because=reason)
        task = StoreTask(store.definition, number, opened, origin, progress, self._observe_freshness)
        if checkpoint:
            task.caught_up_time = checkpoint.caught_up_time
        store.add(task)
        return task

    def _open_store(self, store: StateStore, number: int) -> tuple[StorePartition, str | None]:
        try:
            return self._open_partition(store.definition.name, number), None
        except StoreCorruptError as error:
            return self._open_partition(store.definition.name, number), str(error)


def has_missed_deletions(caught_up_time: int, retention: timedelta) -> bool:
    """Whether the changelog may have forgotten deletions since a store last was at its end (milliseconds)."""
    age = timedelta(milliseconds=time.time_ns() // 1_000_000 - caught_up_time)
    return age > _USABLE_SHARE_OF_RETENTION * retention


def _checkpoint_of(task: StoreTask) -> Checkpoint | None:
    """What an open task would write down now: it may have been at the end since its last write."""
    checkpoint = task.store.checkpoint
    return checkpoint and Checkpoint(checkpoint.origin, checkpoint.offset, task.caught_up_time)


def _why_rebuild(checkpoint: Checkpoint | None, origin: str, changelog: Changelog, low: int, high: int) -> str | None:
    """Why a store's data cannot be continued from its changelog, or None if it can."""
    if checkpoint is None:
        return None
    if checkpoint.origin != origin:
        return f"it was made of {checkpoint.origin}, the changelog is {origin}"
    if not low <= checkpoint.offset <= high:
        return f"its offset {checkpoint.offset} is outside of the changelog's {low} to {high}"
    if has_missed_deletions(checkpoint.caught_up_time, changelog.tombstone_retention):
        return (
            f"it was last complete at {checkpoint.caught_up_time} ms, and the changelog forgets deletions "
            f"after {int(changelog.tombstone_retention.total_seconds())} s"
        )
    return None
