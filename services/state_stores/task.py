"""A store task: one partition of one store, and how far it has followed its changelog. No Kafka here."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from services.messaging.schema_ids import UnknownSchemaIdError
from services.messaging.wire import UndecodableError
from services.state_stores.contract import Checkpoint, StorePartition
from services.state_stores.definition import StoreDefinition
from services.state_stores.entry import Entry

log = structlog.get_logger(__name__)


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
        ignored: records skipped because their sequence is not greater than the stored one.
        rebuilt_because: why local data was thrown away at the start, if it was.
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


class StoreTask:
    """Applies a changelog partition to a store partition, in the order of its offsets."""

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
        self._observe_freshness = observe_freshness
        self.advance(progress.position)

    def apply(self, records: Iterable[ChangelogRecord]) -> Collection[bytes]:
        """Write what the records change, together with their offsets; returns the keys that were written.

        Records below the position are repeats and are skipped, as are sequences that are not greater than the stored
        one (replays, a writer that was thought dead) and values that cannot be read.
        """
        writes: dict[bytes, bytes | None] = {}
        updated_times: list[int] = []
        position = self.progress.position
        for record in records:
            if record.offset < position:
                continue
            position = record.offset + 1
            self._take(record, writes, updated_times)
        if position == self.progress.position:
            return ()
        now = time.time_ns() // 1_000_000
        self.store.apply(writes, Checkpoint(self.origin, position, now))
        if self.progress.restored:  # what was waiting while this instance was away says nothing about freshness
            for updated_time in updated_times:
                self._observe_freshness((now - updated_time) / 1000)
        self.progress.applied += len(updated_times)
        self.advance(position)
        return writes.keys()

    def advance(self, position: int) -> None:
        """Note that everything below this offset is applied, or was never there (compaction, transaction markers)."""
        progress = self.progress
        progress.position = max(progress.position, position)
        progress.end_offset = max(progress.end_offset, progress.position)
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

    def _take(self, record: ChangelogRecord, writes: dict[bytes, bytes | None], updated_times: list[int]) -> None:
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
        known = writes[record.key] if record.key in writes else self.store.get(record.key)
        if known is not None and view.sequence <= Entry.unpack(known).sequence:
            self.progress.ignored += 1
            return
        writes[record.key] = Entry(view.sequence, record.offset, record.append_time, view.body).pack()
        updated_times.append(view.updated_time)

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
