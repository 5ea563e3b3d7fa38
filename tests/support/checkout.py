"""The checkout of this code."""

import subprocess

from infra.local import jars


def commit() -> str:
    """The short name of the commit. ``+`` marks uncommitted changes."""
    return _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=jars.ROOT, capture_output=True, text=True, check=True).stdout.strip()
