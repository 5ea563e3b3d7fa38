"""The folders of the data: infra.local.folders."""

from pathlib import Path
from stat import S_IMODE

import pytest

from infra.local import folders


def test_a_relative_folder_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``loyalty up --dir data`` keeps everything in ``data``, and not in ``data/data``."""
    monkeypatch.chdir(tmp_path)
    assert tmp_path.resolve() / "data" == folders.enter(Path("data")) == Path.cwd()


def test_no_other_user_may_enter_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files in it have cards. An existing folder keeps its rights."""
    monkeypatch.chdir(tmp_path)
    assert 0o700 == S_IMODE(folders.enter(tmp_path / "data").stat().st_mode)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    assert 0o755 == S_IMODE(folders.enter(shared).stat().st_mode)
