"""Copies of segments in files: which copy is used, and what is left."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.deduplication import segment_files
from pipelines.deduplication.segment_files import SMALLEST_FILE, SegmentFiles
from pipelines.deduplication.segments import Hashes, Segment, pack_contents, remember


class State:
    """The segments in Spark's state, and the names that were read from it."""

    def __init__(self, *sizes: int) -> None:
        self.contents: dict[str, Hashes] = {
            f"{size:032x}": np.arange(2 * size, dtype=np.int64).reshape(2, -1) for size in sizes
        }
        self.segments = [Segment(name, 0, content.shape[1]) for name, content in self.contents.items()]
        self.read: list[str] = []

    def fetch(self, names: Sequence[str]) -> list[bytes]:
        self.read += names
        return [pack_contents(self.contents[name]) for name in names]

    def assert_loads(self, files: SegmentFiles) -> None:
        loaded = files.load(self.segments, self.fetch)
        for content, expected in zip(loaded, self.contents.values(), strict=True):
            np.testing.assert_array_equal(expected, content)


@pytest.fixture(autouse=True)
def no_contents_in_use() -> Iterator[None]:
    start_another_worker()
    yield
    start_another_worker()


def test_the_unfinished_file_of_another_task_stays(tmp_path: Path) -> None:
    """After a restart of the query, a task of the former run can still work."""
    (tmp_path / "0.4711").write_bytes(b"")
    State(3).assert_loads(SegmentFiles(tmp_path))
    assert ["0.4711"] == [file.name for file in tmp_path.iterdir()]


def start_another_worker() -> None:
    segment_files._IN_USE.clear()


def test_another_worker_reads_large_segments_from_files(tmp_path: Path) -> None:
    """The state is read once for each large segment on a machine, and by each worker for a small one."""
    small, large, state = 3, SMALLEST_FILE, State(3, SMALLEST_FILE)
    state.assert_loads(SegmentFiles(tmp_path))
    state.assert_loads(SegmentFiles(tmp_path))
    assert [f"{small:032x}", f"{large:032x}"] == state.read

    start_another_worker()
    state.assert_loads(SegmentFiles(tmp_path))
    assert [f"{small:032x}"] == state.read[2:]
    assert [f"{large:032x}"] == [file.name for file in tmp_path.iterdir()]


def test_an_older_state_finds_segments_that_were_removed(tmp_path: Path) -> None:
    """Spark can go back to a state from before a merge. This state still has the merged segments."""
    state, merged = State(3, SMALLEST_FILE, SMALLEST_FILE + 1), State(2 * SMALLEST_FILE + 4)
    files = SegmentFiles(tmp_path)
    state.assert_loads(files)
    files.keep(merged.contents)
    merged.assert_loads(files)
    assert [*merged.contents] == [file.name for file in tmp_path.iterdir()]

    state.read.clear()
    state.assert_loads(SegmentFiles(tmp_path))
    assert [*state.contents] == state.read


def test_a_machine_removes_the_files_of_segments_that_another_machine_has_merged(tmp_path: Path) -> None:
    """On a cluster, the task of a bucket changes its machine. Without this, the first machine would keep all files."""
    here, elsewhere = SegmentFiles(tmp_path / "here"), SegmentFiles(tmp_path / "elsewhere")
    state, merged = State(SMALLEST_FILE), State(2 * SMALLEST_FILE)
    here.keep(state.contents)
    state.assert_loads(elsewhere)
    elsewhere.keep(merged.contents)

    merged.assert_loads(here)
    assert [*merged.contents] == [file.name for file in (tmp_path / "here").iterdir()]


def test_new_segments_are_not_read_from_the_state(tmp_path: Path) -> None:
    """A worker has a copy of what it has just written."""
    state = State(3, SMALLEST_FILE)
    files = SegmentFiles(tmp_path)
    files.keep(state.contents)
    state.assert_loads(files)
    assert [] == state.read


def test_contents_stay_valid_after_their_file_is_removed(tmp_path: Path) -> None:
    """Another worker may remove a file while this one still searches in it."""
    state = State(SMALLEST_FILE)
    files = SegmentFiles(tmp_path)
    (content,) = files.load(state.segments, state.fetch)
    SegmentFiles(tmp_path).load([], state.fetch)
    np.testing.assert_array_equal(*state.contents.values(), content)
    assert [] == [*tmp_path.iterdir()]


WORKERS = 2

attempts = st.tuples(
    st.lists(st.integers(0, 200), min_size=1, max_size=30),
    st.integers(0, WORKERS - 1),
    st.sampled_from(["commit", "commit", "discard", "lose the newest commit"]),
)


@given(st.lists(attempts, max_size=40))
def test_each_identity_passes_once_whatever_fails(given_attempts: list[tuple[list[int], int, str]]) -> None:
    """Tasks move between workers, attempts fail after they have changed the files, and the newest commit is lost.

    Each committed micro-batch still passes exactly the identities that no committed one before it has passed.
    """
    workers: list[dict[Path, dict[str, Hashes]]] = [{} for _ in range(WORKERS)]
    states: list[tuple[list[Segment], dict[str, bytes]]] = [([], {})]
    seen: list[set[int]] = [set()]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_files, "SMALLEST_FILE", 20)
        for rows, worker, end in given_attempts:
            patch.setattr(segment_files, "_IN_USE", workers[worker])
            files = SegmentFiles(Path(folder))
            segments, contents = states[-1]
            hashes, order = np.array([rows, rows]), [np.zeros(len(rows), np.int64), np.arange(len(rows))]
            change = remember(
                hashes,
                order,
                0,
                1_000,
                segments,
                lambda wanted, files=files, contents=contents: files.load(
                    wanted, lambda names: [contents[name] for name in names]
                ),
            )
            files.keep(change.added)
            assert set(rows) - seen[-1] == {rows[position] for position in change.fresh}
            assert len(set(rows) - seen[-1]) == len(change.fresh)
            if end == "commit":
                added = {name: pack_contents(content) for name, content in change.added.items()}
                kept = {name: content for name, content in contents.items() if name not in change.removed}
                states.append((change.segments, kept | added))
                seen.append(seen[-1] | set(rows))
            elif end == "lose the newest commit" and len(states) > 1:
                states.pop()
                seen.pop()
