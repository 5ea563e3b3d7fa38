"""A store task: it applies a changelog partition to one store partition. It does not use Kafka itself."""

import time
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from services import clock
from services.messaging.avro import UndecodableError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.state_stores.contract import Checkpoint, StoredValues, StorePartition
from services.state_stores.definition import StoreDefinition, VersionedValue

log = structlog.get_logger(__name__)

# The pause between two searches for expired values. The broker is not more exact, because it deletes whole segments.
_EXPIRY_SECONDS = 600.0
# A row takes 4 to 10 microseconds, so a page takes up to 20 milliseconds. All stores of the instance wait for it.
_EXPIRY_PAGE = 2_000


class ChangelogRecord(NamedTuple):
    """A record of a changelog partition; ``append_time`` in milliseconds since the epoch."""

    offset: int
    append_time: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class TaskProgress:
    """How far a task has applied its changelog. The materialiser's thread writes it, and any thread reads it.

    Attributes:
        resumed_from: the offset of the local checkpoint at the start; None if the store started empty.
        start: the first offset that this task reads.
        position: the next offset to apply.
        end_offset: the highest end offset that the broker has reported.
        target: the end offset at the start. A store that has reached it is restored.
        rebuilt_because: why the local data were deleted at the start; None if they were kept.
        rebuilt_at: when they were deleted, in seconds since the epoch; 0 if they were kept.
        restored: whether the store has reached the target.
        applied: number of records that were applied.
        undecodable: number of records that were skipped because they cannot be decoded.
        ignored: number of records that were skipped because the stored value is at least as new.
        active_target: the end offset when this instance became the owner of the partition; None for a standby.
        active_since: a time before the request for that end offset, by ``boot_seconds``.
        end_asked_at: the time of the request for the last reported end offset, by ``boot_seconds``; 0 for never.
    """

    resumed_from: int | None
    start: int
    position: int
    end_offset: int
    target: int
    rebuilt_because: str | None = None
    rebuilt_at: float = 0.0
    restored: bool = False
    applied: int = 0
    undecodable: int = 0
    ignored: int = 0
    active_target: int | None = None
    active_since: float = 0.0
    end_asked_at: float = 0.0

    def has_reached_active_target(self, assigned_at: float) -> bool:
        """Whether an owner has all records that existed when it became the owner. A promoted standby may lag.

        Args:
            assigned_at: when it became the owner. An older target belongs to an earlier ownership.
        """
        since, target = self.active_since, self.active_target  # the opposite order of ``become``
        return target is not None and self.position >= target and since >= assigned_at

    def become(self, active_target: int | None, since: float) -> None:
        """Become the owner that must reach this target, or a standby (None)."""
        # Other threads read both values. A copy with the new time and the old target would look complete too early.
        self.active_target = None
        self.active_since = since
        self.active_target = active_target

    @property
    def lag(self) -> int:
        """The number of offsets that are not applied yet. Some may have no record, for example after compaction."""
        return max(0, self.end_offset - self.position)

    @property
    def restored_share(self) -> float:
        """From 0 to 1: how much of the restore is done."""
        if self.restored or self.target <= self.start:
            return 1.0
        return min(1.0, max(0.0, (self.position - self.start) / (self.target - self.start)))


class StoreTask:
    """Applies the records of a changelog partition to a store partition, in the order of their offsets.

    Attributes:
        read_source: for a derived store, reads the values from which it is derived (see ``read``). It must be set
            before the first record.
        has_derived: whether another store is derived from this one. It must be set before the first record.
        caught_up_time: see ``Checkpoint``. It is not the time of the last write: a store that lags can write now and
            still miss old records.
    """

    def __init__(
        self,
        definition: StoreDefinition,
        partition: int,
        store: StorePartition,
        origin: str,
        progress: TaskProgress,
        observe_freshness: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.definition = definition
        self.partition = partition
        self.store = store
        self.progress = progress
        self.origin = origin
        self.read_source: Callable[[AbstractSet[bytes]], StoredValues] | None = None
        self.has_derived = False
        self._observe_freshness = observe_freshness
        self._next_expiry = 0.0
        self._expiry_start = b""
        self.caught_up_time = clock.now()
        # An end offset that the store has not reached yet, and the time of the request for it.
        self._end_ahead: tuple[int, int] | None = None
        self._last_batch: StoredValues = {}
        self.advance(progress.position)

    @property
    def serving(self) -> bool:
        """Whether reads are served: the store is restored, and no damage was found."""
        return self.progress.restored and self.store.damage is None

    def get(self, key: bytes) -> VersionedValue | None:
        """The value of a key; None if the key does not exist."""
        stored = self.store.get(key)
        return None if stored is None else VersionedValue.unpack(stored)

    def read(self, keys: AbstractSet[bytes]) -> StoredValues:
        """The stored values of these keys, even before the restore ends. Only the materialiser's thread calls it."""
        # A derived store reads the keys of the batch that this task has just applied.
        last_batch, self._last_batch = self._last_batch, {}
        return last_batch if last_batch.keys() >= keys else self.store.get_many(keys)

    def apply(self, records: Sequence[ChangelogRecord]) -> Collection[bytes]:
        """Write the changes of the records together with their offsets. Returns the keys that were written.

        It skips records below the position, values that cannot be decoded, and values that are not newer than the
        stored ones (for example from a writer that continued after its replacement had started).

        Raises SchemaRegistryUnavailableError. Then it has written and counted nothing, and the caller must read the
        records again.
        """
        writes: dict[bytes, bytes | None] = {}
        updated_times: list[int] = []
        progress = self.progress
        position = progress.position
        keys = {record.key for record in records if record.key is not None}
        known = self.store.get_many(keys)
        sources = self.read_source(keys) if self.read_source else {}
        counts = (progress.applied, progress.undecodable, progress.ignored)
        try:
            for record in records:
                if record.offset < position:
                    continue
                position = record.offset + 1
                if self.definition.derived:
                    self._apply_derived(record, sources, writes)
                else:
                    self._apply_record(record, known, writes, updated_times)
        except SchemaRegistryUnavailableError:
            progress.applied, progress.undecodable, progress.ignored = counts
            raise
        if position == progress.position:
            return ()
        now = clock.now()
        self.store.apply(writes, self._checkpoint(position), known)
        if self.has_derived:
            self._last_batch = {**known, **writes}
        if progress.restored:  # a restore applies old records, which do not show the freshness
            for updated_time in updated_times:
                self._observe_freshness((now - updated_time) / 1000)
        self.advance(position)
        return writes.keys()

    def advance(self, position: int) -> None:
        """Note that all records below this offset are applied; some offsets have no record (compaction, markers)."""
        progress = self.progress
        progress.position = max(progress.position, position)
        progress.end_offset = max(progress.end_offset, progress.position)
        if self._end_ahead and position >= self._end_ahead[0]:
            self.caught_up_time, self._end_ahead = self._end_ahead[1], None
        if not progress.restored and progress.position >= progress.target:
            progress.restored = True
            log.info(
                "store restored",
                store=self.definition.name,
                partition=self.partition,
                resumed_from=progress.resumed_from,
                position=progress.position,
                entries=self.store.count(),
            )

    def note_end_offset(self, end_offset: int, asked_at: float, asked_time: int) -> None:
        """Note the end offset that the broker reported.

        Args:
            asked_at: the time of the request to the broker, by ``boot_seconds``.
            asked_time: the same time, in milliseconds since the epoch.
        """
        progress = self.progress
        progress.end_offset = max(progress.end_offset, end_offset)
        progress.end_asked_at = asked_at
        if progress.position >= end_offset:
            self.caught_up_time, self._end_ahead = asked_time, None
        elif self._end_ahead is None:
            self._end_ahead = (end_offset, asked_time)

    def save_checkpoint(self) -> None:
        """Save position and caught-up time, so that the store of a topic without new records does not look old."""
        if self.store.checkpoint != (checkpoint := self._checkpoint(self.progress.position)):
            self.store.apply({}, checkpoint)

    def write_again(self) -> None:
        """Write the checkpoint again, to test whether the disk has space. Raises StoreFullError if it has none."""
        if not self.store.damage:
            self.store.apply({}, self._checkpoint(self.progress.position))

    def _checkpoint(self, position: int) -> Checkpoint:
        return Checkpoint(self.origin, position, self.caught_up_time)

    def _apply_record(
        self,
        record: ChangelogRecord,
        known: StoredValues,
        writes: dict[bytes, bytes | None],
        updated_times: list[int],
    ) -> None:
        if record.key is None:
            self._skip(record, "it has no key")
            return
        if record.value is None:
            writes[record.key] = None
            return
        try:
            view = self.definition.view(record.key, record.value)
        except UndecodableError as error:
            self._skip(record, str(error))
            return
        sequence = record.offset + 1 if view.sequence is None else view.sequence
        value = VersionedValue(sequence, record.offset, record.append_time, view.body, view.opened_time)
        stored = writes[record.key] if record.key in writes else known[record.key]
        if stored is not None and value.version <= VersionedValue.unpack(stored).version:
            self.progress.ignored += 1
            return
        writes[record.key] = value.pack()
        self.progress.applied += 1
        if view.updated_time is not None:
            updated_times.append(view.updated_time)

    def _apply_derived(self, record: ChangelogRecord, sources: StoredValues, writes: dict[bytes, bytes | None]) -> None:
        """Copy the current value of the source, if it passes the filter.

        The source has already applied or ignored this record. So an old record cannot bring back an old value, and this
        store needs no versions of the keys that it does not hold.
        """
        if record.key is None or self.definition.derived is None or record.key in writes or record.key not in sources:
            return
        value = sources[record.key]
        passes = value is not None and self.definition.derived.keeps(VersionedValue.unpack(value).body)
        writes[record.key] = value if passes else None
        self.progress.applied += 1

    def expire(self, retention: int) -> None:
        """Delete values that are older than the topic's retention, because a newly restored store does not have them.

        Each call searches one page, and the next call searches the next page. After the last page, the search pauses.
        """
        # Nobody reads the store before the restore ends, and the search would slow the restore down.
        if retention < 0 or not self.progress.restored or time.monotonic() < self._next_expiry:
            return
        oldest = clock.now() - retention
        page = self.store.scan(self._expiry_start, None, _EXPIRY_PAGE)
        expired = {key: None for key, stored in page if VersionedValue.unpack(stored).append_time < oldest}
        if expired:
            self.store.apply(expired, self._checkpoint(self.progress.position))
            self._last_batch = {}
        if len(page) == _EXPIRY_PAGE:
            self._expiry_start = page[-1][0] + b"\0"
        else:
            self._expiry_start, self._next_expiry = b"", time.monotonic() + _EXPIRY_SECONDS

    def _skip(self, record: ChangelogRecord, reason: str) -> None:
        self.progress.undecodable += 1
        # The log must not contain the key: it is a card number.
        log.warning(
            "changelog record skipped",
            topic=self.definition.changelog.name,
            partition=self.partition,
            offset=record.offset,
            reason=reason,
        )
