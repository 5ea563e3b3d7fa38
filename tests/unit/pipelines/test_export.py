"""The folder of the export, on a file system in memory: what its start refuses and moves."""

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.queries import export
from pipelines.queries.export import forget_progress, move_undated
from services.settings import Settings
from tests.unit.pipelines.hadoop import Disk

OLD, NEW = "date=__HIVE_DEFAULT_PARTITION__", "date=0001-01-01"


def disk_with(*names: str) -> Disk:
    return Disk({f"export/{name}": "" for name in names})


def files_of(disk: Disk) -> set[str]:
    return {str(path.relative_to("export")) for path, content in disk.entries.items() if content is not None}


@pytest.mark.parametrize(
    ("planned", "newest", "is_refused"),
    [([0, 1], 2, True), ([9, 10], 10, False), ([0, 1], -1, False), ([], 5, False)],
    ids=["older checkpoint", "interrupted batch", "no file", "new checkpoint"],
)
def test_a_checkpoint_that_is_older_than_its_files_is_refused(
    planned: list[int], newest: int, *, is_refused: bool
) -> None:
    """Its next micro-batches would be skipped or written twice. A new checkpoint omits the rows of the files."""
    disk = disk_with(*(f"_checkpoint/offsets/{number}" for number in planned))
    sink: Any = SimpleNamespace(newest_batch=lambda: newest)
    refused = ""
    try:
        export._require_newest(disk.spark, "export/_checkpoint", sink)
    except CheckpointMismatchError as error:
        refused = str(error)
    assert is_refused == bool(refused)
    assert not is_refused or "ends with micro-batch 1, and the files have 2" in refused


@pytest.mark.parametrize(
    ("files", "export_format", "remedy"),
    [
        (["_delta_log/0.json", "date=2026-11-20/0"], "parquet", "set LOYALTY_EXPORT_FORMAT=delta"),
        (["date=2026-11-20/batch=0/0"], "delta", "set LOYALTY_EXPORT_FORMAT=parquet"),
        (["_delta_log/0.json", "date=2026-11-20/0"], "delta", ""),
        (["date=2026-11-20/batch=0/0"], "parquet", ""),
        (["_checkpoint/metadata"], "delta", ""),
        ([], "parquet", ""),
    ],
)
def test_files_of_the_other_format_are_refused(
    monkeypatch: pytest.MonkeyPatch, files: list[str], export_format: Any, remedy: str
) -> None:
    """One reader would see only a part of the rows. A backfill with the wrong setting forgets no progress."""
    monkeypatch.setattr(export, "require_keys", lambda *_: None)
    settings, refused = Settings(export_dir="export", export_format=export_format), ""
    try:
        forget_progress(disk_with(*files).spark, settings)
    except CheckpointMismatchError as error:
        refused = str(error)
    assert bool(remedy) == bool(refused)
    assert remedy in refused


@pytest.mark.parametrize(
    ("committed", "moved"), [([], []), ([9], ["9"]), ([9, 10], ["9", "10"])], ids=["none", "all but one", "all"]
)
def test_undated_rows_of_committed_micro_batches_move(committed: list[int], moved: list[str]) -> None:
    """An unfinished micro-batch writes its rows again, to the new folder. That can have a file of the same name."""
    disk = disk_with(
        *(f"{OLD}/batch={number}/part-0" for number in (9, 10)),
        f"{NEW}/batch=9/part-0",
        *(f"_checkpoint/commits/{number}" for number in committed),
    )
    before = files_of(disk)
    move_undated(disk.spark, "export")
    kept = {name for name in before if not name.startswith(OLD)}
    assert kept | {f"{NEW}/batch={number}/undated-part-0" for number in moved} == files_of(disk)
    move_undated(disk.spark, "export")
    assert PurePosixPath("export", OLD) not in disk.entries


@pytest.mark.parametrize(("export_format", "checked"), [("parquet", 1), ("delta", 0)])
def test_a_forgotten_checkpoint_stays_beside_the_new_one(
    monkeypatch: pytest.MonkeyPatch, export_format: Any, checked: int
) -> None:
    """An operator can go back to it. Parquet files must have the keys of their rows. A second call changes nothing."""
    asked: list[Any] = []
    monkeypatch.setattr(export, "require_keys", lambda *given: asked.append(given[1:]))
    monkeypatch.setattr("pipelines.queries.export.time.time", lambda: 7.5)
    disk, settings = disk_with("_checkpoint/metadata"), Settings(export_dir="export", export_format=export_format)
    for _ in range(2):
        forget_progress(disk.spark, settings)
    assert {"_checkpoint-7/metadata"} == files_of(disk)
    assert [("export", {"LineID": "STRING"})] * (2 * checked) == asked
