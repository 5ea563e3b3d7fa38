"""The offsets that a dispatcher has read and not committed."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from services.messaging.dead_letters import RecordPosition
from services.webhooks.uncommitted_offsets import UncommittedOffsets


@given(st.lists(st.tuples(st.sampled_from(["add", "finish", "commit"]), st.integers(0, 2), st.integers(0, 30))))
def test_only_finished_records_are_committed(steps: list[tuple[str, int, int]]) -> None:
    """The committed offset is the first that is not finished. All records behind it count as uncommitted."""
    uncommitted = UncommittedOffsets()
    added, finished, committed = defaultdict[int, int](int), set[RecordPosition](), defaultdict[int, int](int)
    for what, partition, offset in steps:
        if what == "add":
            uncommitted.add(RecordPosition(partition, added[partition]))
            added[partition] += 1
        elif what == "finish" and added[partition]:
            finished.add(position := RecordPosition(partition, offset % added[partition]))
            uncommitted.finish(position)
        elif what == "commit":
            offsets = uncommitted.committable()
            uncommitted.remove_committed(offsets)
            committed.update(offsets)
    for partition in range(3):
        uncommitted.remove_committed(found := uncommitted.committable())
        committed.update(found)
        end = committed[partition]
        assert all(RecordPosition(partition, offset) in finished for offset in range(end))
        assert RecordPosition(partition, end) not in finished
        assert added[partition] - end == uncommitted.count(partition)


def test_the_start_of_a_new_partition_is_committed_once() -> None:
    """Until then, a record that is not finished does not hide it."""
    uncommitted = UncommittedOffsets()
    uncommitted.start(0, 7)
    uncommitted.add(RecordPosition(0, 7))
    assert {0: 7} == uncommitted.committable()
    uncommitted.remove_committed({0: 7})
    assert ({}, 1) == (uncommitted.committable(), uncommitted.count(0))


def test_records_of_revoked_partitions_are_ignored() -> None:
    """A delivery can end after its partition was revoked. It changes nothing."""
    uncommitted = UncommittedOffsets()
    uncommitted.finish(RecordPosition(0, 7))
    assert {} == uncommitted.committable()
    uncommitted.add(RecordPosition(0, 8))
    uncommitted.finish(RecordPosition(0, 7))
    assert ({}, 1) == (uncommitted.committable(), uncommitted.count(0))
