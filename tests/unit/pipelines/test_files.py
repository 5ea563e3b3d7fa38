"""Small files in a folder of Hadoop, on a file system in memory. tests/spark/test_files.py has a real one."""

from pathlib import PurePosixPath

import pytest

from pipelines.checkpoints.files import Files
from tests.unit.pipelines.hadoop import Disk, KilledError


def write(disk: Disk, text: str, changes: int) -> bool:
    """Write a file with a process that is killed after these changes. Returns whether it was killed."""
    disk.changes_left = changes
    try:
        Files(disk.spark, "folder").write("a.json", text)
    except KilledError:
        return True
    finally:
        disk.changes_left = 10**9
    return False


@pytest.mark.parametrize("first", range(8))
def test_two_killed_writes_leave_a_complete_file(first: int) -> None:
    """The checkpoint would lose its manifest. A later write succeeds, and leaves no other file."""
    for second in range(10):
        disk = Disk()
        assert not write(disk, "old", 10)
        known = ["old"]
        for text, changes in (("new", first), ("newer", second)):
            killed = write(disk, text, changes)
            files = Files(disk.spark, "folder")
            assert files.exists("a.json")
            known = [*known, text] if killed else [text]
            assert files.read("a.json") in known
        assert not write(disk, "last", 10)
        assert ("last", ["a.json"]) == (files.read("a.json"), files.names())


def test_a_file_is_new_or_does_not_exist() -> None:
    """An unfinished file is no file."""
    found = []
    for changes in range(7):
        disk = Disk()
        write(disk, "new", changes)
        files = Files(disk.spark, "folder")
        found.append(files.exists("a.json") and files.read("a.json"))
    assert [False] * 4 == found[:4]
    assert {"new"} == {*found[4:]}


def test_a_folder_that_does_not_exist_has_no_names() -> None:
    """It is listed without its subfolders' files."""
    disk = Disk({"folder/offsets/0": "", "folder/a.json": ""})
    files = Files(disk.spark, "folder")
    assert (["a.json", "offsets"], ["0"], []) == (sorted(files.names()), files.names("offsets"), files.names("commits"))
    assert (True, False) == (files.exists(), Files(disk.spark, "other").exists())


def test_only_a_read_that_ignores_the_checksum_takes_an_edited_file() -> None:
    """A file of Spark with a wrong checksum is damaged. The guides let an operator edit the files of the pipeline."""
    disk = Disk({"folder/a.json": "[]"})
    disk.edited.add(PurePosixPath("folder/a.json"))
    files = Files(disk.spark, "folder")
    assert "[]" == files.read("a.json", verify=False)
    with pytest.raises(OSError, match="Checksum"):
        files.read("a.json")


def test_a_file_can_move_to_a_new_folder() -> None:
    """Hadoop returns False if it does not rename. A caller must not take that for success."""
    disk = Disk({"folder/a/0": "a", "folder/b/0": "b"})
    files = Files(disk.spark, "folder")
    files.rename("a/0", "c/d/0")
    assert "a" == files.read("c/d/0")
    with pytest.raises(OSError, match="refused to rename folder/b/0 to folder/c/d/0"):
        files.rename("b/0", "c/d/0")
    files.rename_folder("renamed")
    assert "b" == Files(disk.spark, "renamed").read("b/0")
    Files(disk.spark, "renamed").delete("c")
    assert ["a", "b"] == Files(disk.spark, "renamed").names()
