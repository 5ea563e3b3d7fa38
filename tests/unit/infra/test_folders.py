"""The folders of the data: infra.local.folders."""

from pathlib import Path

import pytest

from infra.local import folders


def test_a_relative_folder_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``loyalty up --dir data`` keeps everything in ``data``, and not in ``data/data``."""
    monkeypatch.chdir(tmp_path)
    assert tmp_path.resolve() / "data" == folders.enter(Path("data")) == Path.cwd()
