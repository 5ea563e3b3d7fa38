"""A store task: one partition of one store, and how far it has followed its changelog. No Kafka here."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from services.messaging.avro import UndecodableError
from services.messaging.schema_ids import SchemaRegistryUnavailableError, UnknownSchemaIdError
from services.state_stores.contract import Checkpoint, StorePartition
from services.state_stores.definition import StoreDefinition
from services.state_stores.entry import Entry

log = structlog.get_logger(__name__)

# The broker too deletes what is past its retention now and then, a segment at a time.
_EXPIRY_SECONDS = 600.0
_EXPIRY_PAGE = 10_000


class ChangelogRecord(NamedTuple):
    """A record of a changelog partition; ``append_time`` in milliseconds since the epoch."""

    offset: int
    append_time: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Progress:
    """How far a store partition is; written by the materialiser's thread, read by any.

    Attributes:
        resumed_from: the offset of the local checkpoint at its start; None if it began with nothing.
        position: the next offset to apply.
        end_offset: one past the newest record that the broker is known to have.
        target: the end offset seen at the start; restored means that it has been reached once.
        undecodable: records skipped because they cannot be read.
        ignored: records skipped because they are not newer than the stored one (see ``Entry.version``).
        rebuilt_because: why local data was thrown away at the start, if it was.
        active_target: the end offset seen when this instance became the partition's owner; None for a standby.
        end_asked_at: when the broker was asked for an end offset that is noted here, by ``boot_seconds``; 0 for never.
    """

    resumed_from: int | None
    start: int
    position: int
    end_offset: int
    target: int
    rebuilt_because: str | None = None
    restored: bool = False
    applied: int = 0
    undecodable: int = 0
    ignored: int = 0
    active_target: int | None = None
    end_asked_at: float = 0.0

    @property
    def caught_up(self) -> bool:
        """Whether an owner has all that the changelog had when it became the owner: a promoted standby may lag."""
        return self.active_target is not None and self.position >= self.active_target

    @property
    def lag(self) -> int:
        """Records that the broker has and the store has not seen; on a compacted topic at most this many."""
        return max(0, self.end_offset - self.position)

    @property
    def restored_share(self) -> float:
        """From 0 to 1, of the way from where this start began to its target."""
        if self.restored or self.target <= self.start:
            return 1.0
        return min(1.0, max(0.0, (self.position - self.start) / (self.target - self.start)))


_Stored = Mapping[bytes, bytes | None]
"""Keys, and the packed entries that a store has for them."""


class StoreTask:
    """Applies a changelog partition to a store partition, in the order of its offsets.

    Attributes:
        source: for a derived store, reads the entries that it is derived from (see ``read``); set before the first
            record.
        is_source: whether another store is derived from this one; set likewise.
        caught_up_time: see ``Checkpoint``. Not the time of a write: what a store that lags has just written says
            nothing about what it has missed.
    """

    def __init__(
        self,
        definition: StoreDefinition,
        partition: int,
        store: StorePartition,
        origin: str,
        progress: Progress,
        observe_freshness: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.definition = definition
        self.partition = partition
        self.store = store
        self.progress = progress
        self.origin = origin
        self.source: Callable[[AbstractSet[bytes]], _Stored] | None = None
        self.is_source = False
        self._observe_freshness = observe_freshness
        self._next_expiry = 0.0
        self.caught_up_time = _now()
        self._end_ahead: tuple[int, int] | None = None
        self._latest: _Stored = {}
        self.advance(progress.position)

    def get(self, key: bytes) -> Entry | None:
        """The entry of a key; None for a key that the store does not have."""
        stored = self.store.get(key)
        return None if stored is None else Entry.unpack(stored)

    def read(self, keys: AbstractSet[bytes]) -> _Stored:
        """What is stored for these keys, restored or not; for the materialiser's thread."""
        # A derived store asks for the keys of the batch that was applied here a moment ago.
        latest, self._latest = self._latest, {}
        return latest if latest.keys() >= keys else self.store.get_many(keys)

    def apply(self, records: Sequence[ChangelogRecord]) -> Collection[bytes]:
        """Write what the records change, together with their offsets; returns the keys that were written.

        Records below the position are repeats and are skipped, as are those that are not newer than the stored one
        (replays, a writer that was thought dead) and values that cannot be read.

        Raises SchemaRegistryUnavailableError, with nothing written or counted: the records must come again.
        """
        writes: dict[bytes, bytes | None] = {}
        updated_times: list[int] = []
        position = self.progress.position
        progress = self.progress
        keys = {record.key for record in records if record.key is not None}
        known = self.store.get_many(keys)
        sources = self.source(keys) if self.source else {}
        counted = (progress.applied, progress.undecodable, progress.ignored)
        try:
            for record in records:
                if record.offset < position:
                    continue
                position = record.offset + 1
                if self.definition.derived:
                    self._derive(record, sources, writes)
                else:
                    self._take(record, known, writes, updated_times)
        except SchemaRegistryUnavailableError:
            progress.applied, progress.undecodable, progress.ignored = counted
            raise
        if position == self.progress.position:
            return ()
        now = _now()
        self.store.apply(writes, self._checkpoint(position), known)
        if self.is_source:
            self._latest = {**known, **writes}
        self._expire(position, now)
        if self.progress.restored:  # what was waiting while this instance was away says nothing about freshness
            for updated_time in updated_times:
                self._observe_freshness((now - updated_time) / 1000)
        self.advance(position)
        return writes.keys()

    def advance(self, position: int) -> None:
        """Note that everything below this offset is applied, or was never there (compaction, transaction markers)."""
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

    def note_end(self, end_offset: int, asked_at: float, asked_time: int) -> None:
        """Note where the changelog ended when, or after, the broker was asked.

        Args:
            end_offset: one past the newest record.
            asked_at: by ``boot_seconds``.
            asked_time: by the clock on the wall, milliseconds since the epoch.
        """
        progress = self.progress
        progress.end_offset = max(progress.end_offset, end_offset)
        progress.end_asked_at = asked_at
        if progress.position >= end_offset:
            self.caught_up_time, self._end_ahead = asked_time, None
        elif self._end_ahead is None:
            self._end_ahead = (end_offset, asked_time)

    def touch(self) -> None:
        """Write down that it is still where its changelog ends: a quiet topic must not look like a missed one."""
        if self.store.checkpoint != (checkpoint := self._checkpoint(self.progress.position)):
            self.store.apply({}, checkpoint)

    def _checkpoint(self, position: int) -> Checkpoint:
        return Checkpoint(self.origin, position, self.caught_up_time)

    def _take(
        self,
        record: ChangelogRecord,
        stored: _Stored,
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
        except (UndecodableError, UnknownSchemaIdError) as error:
            self._skip(record, str(error))
            return
        sequence = record.offset + 1 if view.sequence is None else view.sequence
        entry = Entry(sequence, record.offset, record.append_time, view.body, view.opened_time)
        known = writes[record.key] if record.key in writes else stored[record.key]
        if known is not None and entry.version <= Entry.unpack(known).version:
            self.progress.ignored += 1
            return
        writes[record.key] = entry.pack()
        self.progress.applied += 1
        if view.updated_time is not None:
            updated_times.append(view.updated_time)

    def _derive(self, record: ChangelogRecord, sources: _Stored, writes: dict[bytes, bytes | None]) -> None:
        """Take over what the source has for the key by now, if it passes the filter.

        The source has applied this record, or knows better: that way a record that it ignored cannot bring back what
        was filtered out, and nothing need be remembered here about keys that are not here.
        """
        if record.key is None or self.definition.derived is None or record.key in writes or record.key not in sources:
            return
        entry = sources[record.key]
        passes = entry is not None and self.definition.derived.keeps(Entry.body_of(entry))
        writes[record.key] = entry if passes else None
        self.progress.applied += 1

    def _expire(self, position: int, now: int) -> None:
        """Delete what the broker deletes by age: a store that ran for weeks holds what one restored today does."""
        retention = self.definition.changelog.retention
        if retention is None or time.monotonic() < self._next_expiry:
            return
        oldest = now - int(retention.total_seconds() * 1000)
        start = b""
        while page := self.store.scan(start, None, _EXPIRY_PAGE):
            expired = {key: None for key, stored in page if Entry.unpack(stored).append_time < oldest}
            if expired:
                self.store.apply(expired, self._checkpoint(position))
                self._latest = {}
            start = page[-1][0] + b"\0"
        self._next_expiry = time.monotonic() + _EXPIRY_SECONDS

    def _skip(self, record: ChangelogRecord, reason: str) -> None:
        self.progress.undecodable += 1
        # Never the key: it is a card number.
        log.warning(
            "changelog record skipped",
            topic=self.definition.changelog.name,
            partition=self.partition,
            offset=record.offset,
            reason=reason,
        )


def _now() -> int:
    return time.time_ns() // 1_000_000
