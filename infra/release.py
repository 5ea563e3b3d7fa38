"""``make release`` builds a release into dist/: packages, SBOMs, contracts, changes and checksums.

The files depend only on the commit, so two builds of a commit have the same bytes (https://reproducible-builds.org).
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from infra.local import folders
from infra.local.folders import ROOT

DIST = ROOT / "dist"
CHECKSUMS = "SHA256SUMS"
_CONTRACTS = "docs/reference/contracts"


class ReleaseError(RuntimeError):
    """The release cannot be built. The message says why and what to do."""


def main() -> int:
    """Build the release of the current commit. Returns the exit status."""
    try:
        files = build(DIST)
    except ReleaseError as error:
        print(f"release failed: {error}", file=sys.stderr)
        return 1
    print(*files, sep="\n")
    return 0


def build(target: Path) -> list[Path]:
    """Build the release of the commit. Deletes the target folder first. Returns the files. Raises ReleaseError.

    The release has no uncommitted changes.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        # The tarfile of Python 3.11.2, in Debian 12, has no filter, and newer ones warn without it.
        archive = _git("archive", "--format=tar", "HEAD")
        try:
            subprocess.run(["tar", "-xf", "-", "-C", folder], input=archive, check=True)
        except FileNotFoundError as error:
            raise ReleaseError("tar is not installed: install it, because it unpacks the commit") from error
        version = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        notes = changelog_section((source / "CHANGELOG.md").read_text(encoding="utf-8"), version)
        commit_time = _git("log", "-1", "--format=%ct", "HEAD").decode().strip()
        _run(["hatchling", "build", "--directory", str(target)], source, commit_time)
        # The SBOMs describe the downloaded jars. The command fails if their checksums are not those of the source.
        (source / "var").symlink_to(folders.downloads())
        _run(["infra.supply_chain", "sbom", "--to", str(target)], source, commit_time)
        for contract in ("openapi.json", "asyncapi.json"):
            shutil.copyfile(source / _CONTRACTS / contract, target / contract)
    (target / "CHANGES.md").write_text(notes, encoding="utf-8")
    files = sorted(target.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (target / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    return [*files, target / CHECKSUMS]


def changelog_section(changelog: str, version: str) -> str:
    """The section of a version, without its heading. Raises ReleaseError."""
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not found or not found[1].strip():
        raise ReleaseError(
            f"CHANGELOG.md has no section for version {version}: write what changed under ## [{version}]"
        )
    return found[1].strip() + "\n"


def _run(program: list[str], source: Path, commit_time: str) -> None:
    """Run a Python program of the source. All files get the time of the commit."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": commit_time}
    command = [sys.executable, "-m", *program]
    ended = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ReleaseError(f"{program[0]} failed:\n{ended.stdout}{ended.stderr}")


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise ReleaseError("git is not installed: install it, because a release is made from a commit") from error
    except subprocess.CalledProcessError as error:
        raise ReleaseError(f"git {arguments[0]} failed: {error.stderr.decode().strip()}") from error


if __name__ == "__main__":
    sys.exit(main())
