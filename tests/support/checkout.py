"""The checkout of this code."""

import subprocess

from infra.local import jars

_NO_CODE = (":!docs", ":!benchmarks", ":(exclude,glob)**/*.md")
"""What a test cannot run. A result stays valid if only this changes."""


def commit() -> str:
    """The short name of the last commit that changed code. ``+`` marks uncommitted changes of code."""
    name = _git("log", "-1", "--format=%h", "--", ".", *_NO_CODE)
    return name + ("+" if _git("status", "--porcelain", "--untracked-files=no", "--", ".", *_NO_CODE) else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=jars.ROOT, capture_output=True, text=True, check=True).stdout.strip()
