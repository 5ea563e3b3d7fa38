"""The archive of Spark's classes."""

import shlex
from pathlib import Path
from typing import NoReturn

import pytest

from pipelines.runtime import make_class_archive
from pipelines.runtime.class_archive import archive_in, options
from services.settings import Settings


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """A folder whose path is several words for a shell."""
    folder = tmp_path / "my friend's jars"
    folder.mkdir()
    return folder


def test_java_uses_the_archive_beside_the_jars(jars: Path) -> None:
    """Spark splits the options as a shell does. Java would take the rest of the path for the class to run."""
    assert "" == options(jars)
    archive_in(jars).write_bytes(b"")
    assert f"-XX:SharedArchiveFile={jars}/classes-4.2.1.jsa" == shlex.split(options(jars))[0]


def test_java_writes_the_archive_only_beside_the_jars(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a part of the path, Java would overwrite another file of the user."""

    class StartedError(Exception):
        pass

    def start(settings: Settings, _: str) -> NoReturn:
        raise StartedError(settings.spark_java_options)

    monkeypatch.setattr(make_class_archive, "spark_session", start)
    with pytest.raises(StartedError) as started:
        make_class_archive.make(jars)
    assert f"-XX:ArchiveClassesAtExit={jars}/classes-4.2.1.part" in shlex.split(str(started.value))
