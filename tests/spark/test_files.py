"""Small files in a folder of Hadoop's local file system."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines.checkpoints.files import UNFINISHED, Files
from pipelines.checkpoints.manifest import CheckpointMismatchError, read_json


def test_an_interrupted_write_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A crash before the last rename leaves the new content under another name, and it is found. An unfinished file
    does not exist for readers.
    """
    files = Files(spark, str(tmp_path))
    for text in ("first", "second"):
        files.write("a.json", text)
        assert text == files.read("a.json")
    files.rename("a.json", "a.json.next")
    (tmp_path / f"b.json{UNFINISHED}").write_text("{")

    assert (True, "second") == (files.exists("a.json"), files.read("a.json"))
    assert not files.exists("b.json")
    files.write("a.json", "third")
    assert "third" == files.read("a.json")
    assert ["a.json", f"b.json{UNFINISHED}"] == sorted(files.names())


def test_an_operator_may_edit_a_file(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop has the checksum of the old content in a hidden file, as after a power failure that truncates the file."""
    checkpoint, file = str(tmp_path), tmp_path / "lost-records.json"
    Files(spark, checkpoint).write(file.name, "[]")
    assert (tmp_path / f".{file.name}.crc").exists()

    file.write_text('[["pos-invoices", 0, 0, 1]]')
    assert [["pos-invoices", 0, 0, 1]] == read_json(spark, checkpoint, file.name)
    file.write_text('[["pos-invoices", 0, ')
    with pytest.raises(CheckpointMismatchError, match=r"lost-records\.json is damaged"):
        read_json(spark, checkpoint, file.name)
    Files(spark, checkpoint).write(file.name, "[1]")
    assert "[1]" == Files(spark, checkpoint).read(file.name)
