"""What the set-up may replace and what it must leave alone: infra.setup."""

import sys
import venv
from pathlib import Path

import pytest

from infra import setup


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working virtual environment that the set-up did not make, with a file of its user's in it."""
    folder = tmp_path / ".venv"
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "pip").mkdir()
    (packages / "pip" / "__init__.py").touch()
    (folder / "in-use").touch()
    monkeypatch.setattr(setup, "VENV", folder)
    monkeypatch.setattr(setup, "PYTHON", folder / "bin" / "python")
    monkeypatch.delenv("PYTHON", raising=False)
    return folder


def test_a_working_environment_is_kept(environment: Path) -> None:
    """An environment that somebody else made, and may be running from, is not cleared."""
    setup.create_environment()
    assert (environment / "in-use").exists()


def test_a_working_environment_of_the_wanted_python_is_kept(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHON=… of the version that is there already replaces nothing."""
    monkeypatch.setenv("PYTHON", sys.executable)
    setup.create_environment()
    assert (environment / "in-use").exists()


def test_a_half_made_environment_does_not_count(environment: Path) -> None:
    """Without pip nothing can be installed, so it must be made again."""
    next(environment.glob("lib/python*/site-packages/pip/__init__.py")).unlink()
    assert not setup.works(None)


def test_another_python_does_not_count_if_one_is_asked_for(environment: Path) -> None:  # noqa: ARG001
    """PYTHON=… of another version is a wish for another environment."""
    assert not setup.works("3.99")


def test_an_action_runs_once_for_the_same_content(environment: Path) -> None:  # noqa: ARG001
    """What was done to its end is not repeated; new content, or a failure on the way, is."""
    done: list[str] = []

    def fails() -> None:
        raise setup.SetupError("no network")

    setup.run_once("step", b"1", lambda: done.append("first"))
    setup.run_once("step", b"1", lambda: done.append("repeated"))
    with pytest.raises(setup.SetupError):
        setup.run_once("step", b"2", fails)
    setup.run_once("step", b"1", lambda: done.append("after a failure"))
    assert ["first", "after a failure"] == done
