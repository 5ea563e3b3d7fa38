"""Keeps track of the records that a dispatcher has read and not committed."""

from collections import defaultdict

from services.messaging.dead_letters import RecordPosition


class UncommittedOffsets:
    """The offsets of each partition that were read and not committed, and which of them are finished.

    A partition without a committed offset also has a start, until the start is committed.

    ``finish`` adds and removes no keys, so the event loop may call it while a thread calls another method.
    """

    def __init__(self) -> None:
        # For each partition: whether each offset is finished, in the order of the offsets.
        self._finished: defaultdict[int, dict[int, bool]] = defaultdict(dict)
        self._starts: dict[int, int] = {}

    def start(self, partition: int, offset: int) -> None:
        """Begin a partition that has no committed offset."""
        self._starts[partition] = offset

    def add(self, position: RecordPosition) -> None:
        """Add the next record of a partition."""
        self._finished[position.partition][position.offset] = False

    def finish(self, position: RecordPosition) -> None:
        """Note that a record needs no more work. Unknown positions are ignored."""
        offsets = self._finished.get(position.partition, {})
        if position.offset in offsets:
            offsets[position.offset] = True

    def count(self, partition: int) -> int:
        return len(self._finished[partition])

    def committable(self) -> dict[int, int]:
        """For each partition, the offset to commit: all records before it are finished."""
        found = dict(self._starts)
        for partition, offsets in self._finished.items():
            for offset, finished in offsets.items():
                if not finished:
                    break
                found[partition] = offset + 1
        return found

    def remove_committed(self, committed: dict[int, int]) -> None:
        """Forget the records below these offsets, by partition."""
        for partition, end in committed.items():
            self._starts.pop(partition, None)
            offsets = self._finished[partition]
            for offset in [each for each in offsets if each < end]:
                del offsets[offset]
