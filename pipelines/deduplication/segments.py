"""The memory of one bucket: the hashes of all identities that it has seen, in sorted segments.

A log-structured merge-tree: each micro-batch adds a small sorted segment, and segments of similar size merge into one.
So a look-up searches few arrays. But large segments do not merge, so their number grows with the identities
(docs/lab/queries.md). Old identities are removed in whole segments. Nothing here knows Spark.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

Hashes = npt.NDArray[np.int64]
"""Two independent 64-bit hashes of each identity. Shape: (2, identities). A segment is sorted by the first hash."""

MERGE = 4
"""The number of segments of similar size that become one. Each identity is rewritten once for each power of it."""

LARGEST = 2**19
"""A segment with at least this number of identities (8 MiB) is not merged. So no batch waits long for a merge."""

SLICES = 16
"""The number of parts of the time to remember. Only segments of one part merge, so that whole segments can be dropped.
"""

_BYTES_OF_NAME = 16
_DIRECTORY = np.dtype([("name", f"V{_BYTES_OF_NAME}"), ("newest", "<i8"), ("size", "<i8")])


class Segment(NamedTuple):
    """The description of a segment, without its contents.

    Attributes:
        name: digest of the contents. So a wrong copy of a segment has another name.
        newest: the latest time of its identities, milliseconds since the epoch.
        size: number of identities.
    """

    name: str
    newest: int
    size: int


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of a bucket by a micro-batch.

    Attributes:
        fresh: positions of the rows that are the first with their identity, ascending.
        segments: all segments of the bucket afterwards.
        added: contents of new segments, by name.
        removed: names of segments that are no longer needed.
        differs: whether the list of segments has changed. A new segment can have the contents, and so the name, of one
            that was forgotten.
    """

    fresh: npt.NDArray[np.intp]
    segments: list[Segment]
    added: Mapping[str, Hashes]
    removed: Collection[str]
    differs: bool


def remember(
    hashes: Hashes,
    order: Sequence[Integers],
    now: int,
    keep: int,
    segments: Sequence[Segment],
    load: Callable[[Sequence[Segment]], Sequence[Hashes]],
) -> Change:
    """Find the first row of each identity that no segment has, and remember it. Merge and forget segments.

    Args:
        order: columns that decide which of several rows with one identity is the first. The first column is the time
            of the row, milliseconds since the epoch.
        now: time of the micro-batch, milliseconds since the epoch.
        keep: for how many milliseconds to remember an identity at least.
        load: gives the contents of segments in their order.
    """
    # An identity is old if it is old by both clocks: ours, and the broker's in these rows. One of them may be ahead.
    live = [segment for segment in segments if segment.newest >= min(now, int(order[0].max(initial=0))) - keep]
    contents = {segment.name: content for segment, content in zip(live, load(live), strict=True)}
    fresh = _first_of_each(hashes, order)
    for content in contents.values():
        fresh = fresh[~_contains(content, hashes[:, fresh])]
    # A broker's clock may be ahead of ours. Such a time would keep a segment for longer.
    times = np.minimum(order[0][fresh], now)
    slices = times // (keep // SLICES)
    for part in np.unique(slices):
        is_in_part = slices == part
        live.append(_add(contents, hashes[:, fresh[is_in_part]], int(times[is_in_part].max())))
    if chosen := _to_merge(live, keep // SLICES):
        merged = np.concatenate([contents[segment.name] for segment in chosen], axis=1)
        # Each segment is sorted, and NumPy's stable sort merges sorted parts. It is eight times as fast as lexsort.
        by_first_hash = np.argsort(merged[0], kind="stable")
        segment = _add(contents, merged[:, by_first_hash], max(each.newest for each in chosen))
        live = [*(each for each in live if each not in chosen), segment]
    before, after = ({each.name for each in these} for these in (segments, live))
    added = {name: contents[name] for name in after - before}
    return Change(np.sort(fresh), live, added, before - after, differs=live != [*segments])


def pack(segments: Sequence[Segment]) -> bytes:
    """The segments without their contents, 32 bytes each."""
    rows = [(bytes.fromhex(name), newest, size) for name, newest, size in segments]
    return np.array(rows, _DIRECTORY).tobytes()


def unpack(packed: bytes) -> list[Segment]:
    """The opposite of ``pack``."""
    rows = np.frombuffer(packed, _DIRECTORY).tolist()
    return [Segment(bytes(name).hex(), newest, size) for name, newest, size in rows]


def pack_contents(content: Hashes) -> bytes:
    """The contents of a segment, 16 bytes for each identity."""
    return content.astype("<i8").tobytes()


def unpack_contents(packed: bytes | memoryview) -> Hashes:
    """The opposite of ``pack_contents``. The array has no memory of its own."""
    return np.frombuffer(packed, "<i8").reshape(2, -1)


def _add(contents: dict[str, Hashes], content: Hashes, newest: int) -> Segment:
    name = blake2b(pack_contents(content), digest_size=_BYTES_OF_NAME).hexdigest()
    contents[name] = content
    return Segment(name, newest, content.shape[1])


def _first_of_each(hashes: Hashes, order: Sequence[Integers]) -> npt.NDArray[np.intp]:
    """Positions of the first row of each identity, sorted by the hashes."""
    positions = np.lexsort((*order[::-1], hashes[1], hashes[0]))
    in_order = hashes[:, positions]
    is_first = np.ones(len(positions), bool)
    is_first[1:] = (in_order[:, 1:] != in_order[:, :-1]).any(axis=0)
    return positions[is_first]


def _contains(content: Hashes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Whether each identity is in the contents of a segment."""
    found = np.zeros(hashes.shape[1], bool)
    waiting = np.arange(hashes.shape[1])
    at = np.searchsorted(content[0], hashes[0])
    # Two identities can have the same first hash. Then the second hash decides.
    while len(waiting):
        inside = at < content.shape[1]
        at, waiting = at[inside], waiting[inside]
        same = content[0, at] == hashes[0, waiting]
        at, waiting = at[same], waiting[same]
        found[waiting] = content[1, at] == hashes[1, waiting]
        at, waiting = at[~found[waiting]] + 1, waiting[~found[waiting]]
    return found


def _to_merge(segments: Sequence[Segment], slice_length: int) -> list[Segment]:
    """The segments that become one now. At most one merge in each micro-batch limits the time that it takes."""
    present = max((segment.newest for segment in segments), default=0) // slice_length
    groups = defaultdict(list)
    for segment in segments:
        part = segment.newest // slice_length
        if segment.size < LARGEST:
            # A part that has ended gets no more identities, so all its segments merge.
            groups[part, segment.size.bit_length() // 2 if part == present else 0].append(segment)
    for (part, _), group in sorted(groups.items()):
        if len(group) >= (MERGE if part == present else 2):
            return sorted(group, key=lambda segment: segment.size)[:MERGE]
    return []
