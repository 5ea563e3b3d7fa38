"""Small files in a folder of Hadoop's local file system."""

from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.checkpoints.files import UNFINISHED, Files


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
