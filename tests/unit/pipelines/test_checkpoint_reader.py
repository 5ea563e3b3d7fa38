"""What a checkpoint of Spark says, on a file system in memory."""

import json

import pytest

from pipelines.checkpoints.reader import CheckpointReader
from tests.unit.pipelines.hadoop import Disk

EMPTY = CheckpointReader(Disk().spark, "checkpoint")


def batch(invoices: int, time: int, read_until: int = 0) -> str:
    """The file of a micro-batch, as Spark writes it: metadata, and the offsets of each source."""
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": time, "conf": {"spark.sql.shuffle.partitions": "2"}}
    offsets = ({"pos-invoices": {"0": invoices, "10": 7}}, {"loyalty-commands": {"0": 3}}, {"readUntil": read_until})
    return "\n".join(["v1", *map(json.dumps, (metadata, *offsets))])


def reader(**files: str) -> CheckpointReader:
    """A checkpoint with nine committed micro-batches, a tenth one that is only planned, and these files."""
    logs = {f"offsets/{n}": batch(100 * n, 1_000 * n, 10 * n) for n in range(11)}
    logs |= {f"commits/{n}": "v1\n{}" for n in range(10)}
    return CheckpointReader(
        Disk({f"checkpoint/{name}": text for name, text in (logs | files).items()}).spark, "checkpoint"
    )


def test_the_newest_batch_has_the_highest_number() -> None:
    """The names are no numbers for the file system, and some files of a log are not micro-batches."""
    found = reader(**{"commits/.9.crc": "", "commits/9.compact": "", "offsets/.10.tmp": ""})
    assert ([*range(10)], [*range(11)]) == (found.batches(), found.batches("offsets"))
    assert ([], []) == (EMPTY.batches(), EMPTY.batches("offsets"))


def test_positions_are_those_of_the_last_committed_batch() -> None:
    """The options of Spark in the metadata, and the offset of the clock, belong to no topic."""
    found = reader()
    assert {"pos-invoices": {0: 900, 10: 7}, "loyalty-commands": {0: 3}} == found.positions()
    assert 1_000 == found.positions("offsets")["pos-invoices"][0]
    assert (90, 10_000) == (found.clock_time(), found.planned_time())
    assert ({}, 0, 0) == (EMPTY.positions(), EMPTY.clock_time(), EMPTY.planned_time())


def test_a_batch_without_offsets_says_nothing() -> None:
    """A power failure can leave an empty file. A checkpoint of release 0.1 has another clock."""
    found = reader(
        **{"offsets/10": "", "offsets/9": 'v1\n{"batchTimestampMs":1}\n-\n{"pos-invoices":{"0":4}}\n{"n":2}'}
    )
    assert (0, 0) == (found.planned_time(), found.clock_time())
    assert ({}, {"pos-invoices": {0: 4}}) == (found.positions("offsets"), found.positions())
    lost = CheckpointReader(Disk({"checkpoint/commits/3": "v1\n{}"}).spark, "checkpoint")
    assert {} == lost.positions()


def test_the_first_positions_come_from_all_sources() -> None:
    """Spark writes a zero byte and its version before the offsets."""
    sources = {"sources/0/0": '\0v1\n{"pos-invoices":{"0":5}}', "sources/1/0": 'v1{"loyalty-commands":{"0":6}}'}
    found = reader(**sources)
    assert {"pos-invoices": {0: 5}, "loyalty-commands": {0: 6}} == found.first_positions()
    assert {} == EMPTY.first_positions()


@pytest.mark.parametrize(("committed", "is_unfinished"), [(10, True), (11, False)])
def test_a_planned_batch_is_unfinished_until_it_is_committed(committed: int, *, is_unfinished: bool) -> None:
    found = reader(**{f"commits/{n}": "v1\n{}" for n in range(committed)})
    assert is_unfinished == found.has_unfinished_batch
    assert not EMPTY.has_unfinished_batch


def test_a_checkpoint_has_the_id_of_its_query() -> None:
    assert "query" == reader(metadata='{"id":"query"}').query_id()


def test_a_checkpoint_is_unfinished_until_its_rebuild_has_succeeded() -> None:
    """The mark is not in the folder, which the rebuild renames and discards."""
    disk = Disk({"checkpoint/metadata": "{}"})
    found = CheckpointReader(disk.spark, "checkpoint")
    assert not found.is_unfinished

    def fail() -> None:
        with found.unfinished():
            found.rename("before")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (True, False) == (found.is_unfinished, found.exists)
    with found.unfinished():
        assert found.is_unfinished
    assert not found.is_unfinished
    former = CheckpointReader(disk.spark, "before")
    assert former.exists
    former.discard()
    assert not former.exists
