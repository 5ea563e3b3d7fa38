"""The memory of identities as sorted segments, compared with a set of Python."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.deduplication import segments as memory
from pipelines.deduplication.segments import Change, Hashes, Segment

KEEP = 1_600
SLICE = KEEP // memory.SLICES

Row = tuple[int, int, int]
"""Two hashes, and the offset of the row."""


@dataclass
class Bucket:
    """A bucket that keeps its contents in a dictionary, as Spark's state does."""

    segments: list[Segment] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)

    def take(self, rows: Sequence[Row], now: int, time: int | list[int] | None = None) -> list[Row]:
        """The fresh identities among the rows of one micro-batch. ``time``: of all rows, or of each row."""
        change = self.change(rows, now, now if time is None else time)
        if not change.differs:
            return []
        for name, content in change.added.items():
            self.contents[name] = memory.pack_contents(content)
        for name in change.removed:
            del self.contents[name]
        self.segments = memory.unpack(memory.pack(change.segments))
        return [rows[position] for position in change.fresh]

    def change(self, rows: Sequence[Row], now: int, time: int | list[int]) -> Change:
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        order = [np.full(len(rows), time), columns[2]]
        return memory.remember(columns[:2], order, now, KEEP, self.segments, self.load)

    def load(self, segments: Sequence[Segment]) -> list[Hashes]:
        return [memory.unpack_contents(self.contents[segment.name]) for segment in segments]


# Few different hashes, so that identities often share one of the two.
hashes = st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1]))
batches = st.lists(st.lists(st.tuples(hashes, hashes, st.integers(0, 99)), max_size=20), max_size=40)


def test_an_identity_that_comes_again_after_it_was_forgotten_passes_once_again() -> None:
    """Its new segment has the same contents as the forgotten one."""
    bucket, rows = Bucket(), [(1, 1, 0)]
    assert [rows, [], rows, []] == [bucket.take(rows, now) for now in (KEEP, KEEP + 1, 3 * KEEP, 3 * KEEP + 1)]


@given(batches)
def test_each_identity_passes_once(given_batches: list[list[Row]]) -> None:
    """The memory lets the same rows pass as a set does: the first of each identity, by its offset."""
    bucket, seen = Bucket(), set[tuple[int, int]]()
    for rows in given_batches:
        expected = {}
        for first, second, offset in sorted(rows, key=lambda row: row[2]):
            if (first, second) not in seen:
                seen.add((first, second))
                expected[first, second] = offset
        fresh = bucket.take(rows, now=0)
        assert expected == {row[:2]: row[2] for row in fresh}
        assert len(expected) == len(fresh)
        assert len(seen) == sum(segment.size for segment in bucket.segments)
        assert set(bucket.contents) == {segment.name for segment in bucket.segments}


@given(batches, st.lists(st.integers(0, SLICE * 3), min_size=40, max_size=40))
def test_an_identity_is_remembered_for_the_whole_time(given_batches: list[list[Row]], pauses: list[int]) -> None:
    """An identity does not pass again within the time to remember, and passes at the latest one slice after it."""
    bucket, now = Bucket(), 0
    passed: dict[tuple[int, int], int] = {}
    for rows, pause in zip(given_batches, pauses, strict=False):
        now += pause
        fresh = {row[:2] for row in bucket.take(rows, now)}
        for identity in {row[:2] for row in rows}:
            age = now - passed.get(identity, -(10**9))
            if identity in fresh:
                assert age > KEEP
                passed[identity] = now
            else:
                assert age <= KEEP + SLICE


@given(batches)
def test_a_replay_changes_nothing(given_batches: list[list[Row]]) -> None:
    """The same rows in another order, on the same segments, give the same segments and the same fresh identities."""
    bucket = Bucket()
    for now, rows in enumerate(given_batches):
        # A record has one offset, so no two rows of a batch are equal in it.
        numbered = [(first, second, offset) for offset, (first, second, _) in enumerate(rows)]
        once, again = (bucket.change(attempt, now, now) for attempt in (numbered, numbered[::-1]))
        assert once.segments == again.segments
        assert {numbered[each] for each in once.fresh} == {numbered[::-1][each] for each in again.fresh}
        bucket.take(numbered, now)


def test_the_row_that_was_appended_first_passes() -> None:
    """Its offset is the larger one, because it is in another partition."""
    rows = [(1, 1, 3), (1, 1, 5)]
    assert rows[1:] == Bucket().take(rows, now=KEEP, time=[2, 1])


@pytest.mark.parametrize("batches", [1, 2], ids=["one micro-batch", "merged"])
def test_the_last_identity_of_a_segment_is_remembered_for_the_whole_time(batches: int) -> None:
    bucket, rows, last = Bucket(), [(1, 1, 0), (2, 2, 0)], SLICE - 1
    if batches == 1:
        bucket.take(rows, now=last, time=[0, last])
    else:
        bucket.take(rows[:1], now=0)
        bucket.take(rows[1:], now=last)
    bucket.take([(3, 3, 0)], now=SLICE)
    assert 2 == len(bucket.segments)
    assert [] == bucket.take(rows, now=last + KEEP)


def test_a_backlog_keeps_no_old_identity_for_longer() -> None:
    """A micro-batch after a long stop has old records and new ones."""
    bucket, rows = Bucket(), [(1, 1, 0), (2, 2, 0)]
    bucket.take(rows, now=KEEP, time=[0, KEEP])
    assert rows[:1] == bucket.take(rows, now=KEEP + SLICE)


def test_there_are_few_segments() -> None:
    """1,000 micro-batches over the whole time leave a few segments of the present slice, and one of each other."""
    bucket, number, most = Bucket(), 0, 0
    for batch in range(1_000):
        now = batch * KEEP // 1_000
        bucket.take([(number + each, 0, each) for each in range(20)], now)
        number += 20
        most = max(most, len(bucket.segments))
    assert number == sum(segment.size for segment in bucket.segments)
    assert most <= memory.SLICES + 20


def test_whole_segments_are_forgotten() -> None:
    """After the time to remember, nothing of the old identities is left."""
    bucket = Bucket()
    for now in range(0, KEEP, 10):
        bucket.take([(now, now, 0)], now)
    bucket.take([(-1, -1, 0)], now=2 * KEEP + SLICE)
    assert 1 == len(bucket.segments) == len(bucket.contents)


def test_a_clock_of_the_driver_ahead_forgets_nothing() -> None:
    """Points of a repeated invoice count once, although a machine starts with a date in the next year."""
    bucket, rows = Bucket(), [(1, 1, 0)]
    assert rows == bucket.take(rows, now=KEEP)
    assert [] == bucket.take(rows, now=100 * KEEP, time=KEEP + 1)
    assert [] == bucket.take(rows, now=KEEP + 2)


def test_a_clock_ahead_does_not_keep_identities_for_longer() -> None:
    """A broker whose clock is years ahead does not keep its identities in memory for years."""
    bucket = Bucket()
    bucket.take([(1, 1, 0)], now=0, time=10**15)
    assert [(2, 2, 0)] == bucket.take([(2, 2, 0)], now=KEEP + 1)
    assert [1] == [segment.size for segment in bucket.segments]


def test_large_segments_do_not_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of the largest size stays as it is, so that a merge never takes long."""
    monkeypatch.setattr(memory, "LARGEST", 50)
    bucket = Bucket()
    for start in range(0, 300, 50):
        bucket.take([(start + each, 0, 0) for each in range(50)], now=0)
    assert [50] * 6 == [segment.size for segment in bucket.segments]
