"""The set-up replaces only broken environments: infra.setup."""

import fcntl
import os
import shutil
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from infra import setup
from infra.local import jars


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working virtual environment of a user, with a file of the user."""
    folder = tmp_path / ".venv"
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for file in (packages / "pip" / "__init__.py", packages / "pip-23.2.1.dist-info" / "RECORD"):
        file.parent.mkdir()
        file.touch()
    (folder / "in-use").touch()
    monkeypatch.setattr(setup, "VENV", folder)
    monkeypatch.setattr(setup, "PYTHON", folder / "bin" / "python")
    monkeypatch.setattr(setup, "UV", folder / "bin" / "uv")
    monkeypatch.setattr(setup, "PACKAGES", folder / ".packages")
    monkeypatch.delenv("PYTHON", raising=False)
    return folder


@pytest.mark.parametrize("python", ["", sys.executable], ids=["any", "the same"])
def test_a_working_environment_is_kept(environment: Path, monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    """PYTHON=… with the present version replaces nothing either."""
    if python:
        monkeypatch.setenv("PYTHON", python)
    setup.create_environment()
    assert (environment / "in-use").exists()


@pytest.mark.program
def test_an_incomplete_environment_is_replaced(environment: Path) -> None:
    """Ctrl-C can leave half of pip."""
    next(environment.glob("lib/python*/site-packages/pip-*/RECORD")).unlink()
    assert not setup.works(None)
    setup.create_environment()
    assert not (environment / "in-use").exists()


def test_an_interrupted_installation_is_made_again(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C leaves half a package, and uv takes it for a whole one. The environment itself is kept."""
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> None:
        commands.append(command)
        if len(commands) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(setup, "run", run)
    setup.PACKAGES.write_text("other packages")
    setup.UV.touch()
    with pytest.raises(KeyboardInterrupt):
        setup.install_packages()
    for _ in range(2):
        setup.create_environment()
        setup.install_packages()
    assert (environment / "in-use").exists()
    # The project itself comes last.
    programs = [(Path(command[0]).name, any("reinstall" in word for word in command)) for command in commands]
    assert [("python", False), ("python", True), ("uv", True), ("python", False)] == programs


@pytest.mark.usefixtures("environment")
def test_a_new_environment_installs_from_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """To install again, uv refreshes its cache, and then builds PySpark again for minutes."""
    commands: list[Sequence[str]] = []
    monkeypatch.setattr(setup, "run", commands.append)
    setup.install_packages()
    assert ["python", "uv", "python"] == [Path(command[0]).name for command in commands]
    assert not [word for command in commands for word in command if "reinstall" in word]


def test_an_environment_of_another_python_does_not_work(environment: Path) -> None:  # noqa: ARG001
    """PYTHON=… with another version replaces an environment that does not work for it."""
    assert not setup.works("3.99")


@pytest.mark.program
def test_an_environment_of_an_upgraded_python_is_replaced(environment: Path) -> None:
    """After an upgrade of the system, the Python of .venv is another version, which does not see the packages."""
    packages = next(environment.glob("lib/python*"))
    packages.rename(packages.with_name("python3.9"))
    assert not setup.works(None)
    setup.create_environment()
    assert not (environment / "in-use").exists()


def test_an_environment_of_another_machine_does_not_work(environment: Path) -> None:
    """A checkout can be on a disk that machines with different processors share."""
    python = environment / "bin" / "python"
    python.unlink()
    python.write_bytes(b"\x7fELF of another processor")
    python.chmod(0o755)
    assert not setup.works(None)


def test_an_environment_of_another_path_does_not_work(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs of a moved or copied environment start the code at the old path."""
    assert setup.works(None)
    moved = environment.rename(tmp_path / "moved")
    monkeypatch.setattr(setup, "VENV", moved)
    monkeypatch.setattr(setup, "PYTHON", moved / "bin" / "python")
    monkeypatch.setattr(setup, "PACKAGES", moved / ".packages")
    assert not setup.works(None)


def test_an_action_runs_once_for_the_same_content(tmp_path: Path) -> None:
    """A successful action is not repeated for the same content. It is repeated after a failure or for new content."""
    done: list[str] = []
    stamp = tmp_path / "stamp"

    def fails() -> None:
        raise setup.SetupError("no network")

    setup.run_once(stamp, b"1", lambda: done.append("first"))
    setup.run_once(stamp, b"1", lambda: done.append("repeated"))
    with pytest.raises(setup.SetupError):
        setup.run_once(stamp, b"2", fails)
    setup.run_once(stamp, b"1", lambda: done.append("after a failure"))
    assert ["first", "after a failure"] == done


def test_a_second_setup_says_that_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set-up can take minutes. `make status` and `make down` also wait for it."""
    first = os.open(tmp_path, os.O_RDONLY)
    said: list[str] = []

    def say(message: str) -> None:
        said.append(message)
        os.close(first)

    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "say", say)
    fcntl.flock(first, fcntl.LOCK_EX)
    setup.wait_for_another_setup()
    assert ["Waiting for another set-up of this checkout"] == said
    second = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_pip_installs_what_uv_cannot(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A company can have its index in pip's configuration, which uv does not read."""
    commands: list[str] = []

    def run(command: Sequence[str]) -> None:
        commands.append(Path(command[0]).name)
        if command[0] == str(environment / "bin" / "uv"):
            raise setup.SetupError("no index")

    monkeypatch.setattr(setup, "run", run)
    monkeypatch.setattr(setup, "PIP", ["pip"])
    setup.install_locked(setup.REQUIREMENTS / "all.txt", again=False)
    assert ["pip", "uv", "pip"] == commands


def test_new_jars_get_a_new_archive_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is beside the jars, so it is gone with them. Java ignores an archive of another PySpark."""
    folder = tmp_path / "jars"
    pyspark = tmp_path / "lib/python3.11/site-packages/pyspark/jars/ivy-2.jar"
    pyspark.parent.mkdir(parents=True)
    pyspark.touch()
    made: list[str] = []
    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(jars, "folder", lambda _: folder)
    monkeypatch.setattr(setup, "run", lambda command: made.append(command[-1]))
    monkeypatch.setenv("JAVA_HOME", "")
    for _ in range(2):
        folder.mkdir()
        for _ in range(2):
            setup.make_class_archive(Path("/java/bin/java"))
        shutil.rmtree(folder)
    folder.mkdir()
    for time in (1, 2):
        os.utime(pyspark, (time, time))
        setup.make_class_archive(Path("/java/bin/java"))
    (tmp_path / "lib/python3.11").rename(tmp_path / "lib/python3.12")
    setup.make_class_archive(Path("/java/bin/java"))
    assert [str(folder)] * 5 == made
