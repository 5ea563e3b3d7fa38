"""The archive of Spark's classes."""

from pathlib import Path

from pipelines.runtime.class_archive import archive_in, options


def test_java_uses_the_archive_beside_the_jars(tmp_path: Path) -> None:
    assert "" == options(tmp_path)
    archive_in(tmp_path).write_bytes(b"")
    assert f"-XX:SharedArchiveFile={tmp_path}/classes-4.2.1.jsa" == options(tmp_path).split()[0]


def test_a_path_with_a_blank_is_no_option(tmp_path: Path) -> None:
    """Java would take the rest of the path for the class to run."""
    folder = tmp_path / "my jars"
    folder.mkdir()
    archive_in(folder).write_bytes(b"")
    assert "" == options(folder)
