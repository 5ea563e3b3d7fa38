"""A release depends on its commit alone, and holds all that the programs read."""

import hashlib
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from infra.release import CHECKSUMS, ROOT, ReleaseError, build, changelog_section

CHANGELOG = "# Changelog\n\n## [1.1.0] - unreleased\n\n- New.\n\n## [1.0.0] - 2026-01-01\n\n- Old.\n"

pytestmark = [
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a release is built from a commit"),
    # One process builds the release for all tests.
    pytest.mark.xdist_group("release"),
]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("release"))


@pytest.mark.program
def test_two_builds_of_a_commit_are_equal(release: list[Path], tmp_path: Path) -> None:
    again = build(tmp_path / "again")
    assert [file.name for file in release] == [file.name for file in again]
    assert [file.read_bytes() for file in release] == [file.read_bytes() for file in again]


@pytest.mark.program
def test_the_checksums_are_those_of_the_files(release: list[Path]) -> None:
    *files, checksums = release
    assert CHECKSUMS == checksums.name
    listed = dict(line.split("  ")[::-1] for line in checksums.read_text().splitlines())
    assert listed == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert {".whl", ".gz", ".json", ".md"} == {file.suffix for file in files}


@pytest.mark.program
def test_the_wheel_has_every_data_file_of_the_packages(release: list[Path]) -> None:
    wheel = next(file for file in release if file.suffix == ".whl")
    listed = subprocess.run(
        ["git", "ls-files", "api", "infra", "pipelines", "schemas", "services"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    committed = [name for name in listed.stdout.split() if not name.endswith((".py", ".gitignore"))]
    assert {"schemas/ids.json", "infra/jars.sha256"} < {*committed}
    assert [] == sorted({*committed} - {*zipfile.ZipFile(wheel).namelist()})


def test_a_section_of_the_changelog() -> None:
    assert ("- New.\n", "- Old.\n") == (changelog_section(CHANGELOG, "1.1.0"), changelog_section(CHANGELOG, "1.0.0"))
    with pytest.raises(ReleaseError, match=r"no section for version 2\.0\.0"):
        changelog_section(CHANGELOG, "2.0.0")


@pytest.mark.program
def test_a_missing_program_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small image can have git without tar."""
    git = str(shutil.which("git"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReleaseError, match="git is not installed: install it"):
        build(tmp_path / "dist")
    (tmp_path / "git").symlink_to(git)
    with pytest.raises(ReleaseError, match="tar is not installed: install it"):
        build(tmp_path / "dist")


@pytest.mark.program
def test_a_folder_without_a_commit_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.release.ROOT", tmp_path)
    with pytest.raises(ReleaseError, match="git archive failed"):
        build(tmp_path / "dist")
