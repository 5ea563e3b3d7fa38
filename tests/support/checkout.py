"""The git checkout of this code."""

import subprocess

from infra.local.folders import ROOT

_NO_CODE = (":!docs", ":!benchmarks", ":(exclude,glob)**/*.md")
"""Files that no test runs. A result stays valid if only these files change."""


def commit(*unused: str) -> str:
    """The short name of the last commit that changed code. ``+`` marks uncommitted changes of code.

    Args:
        unused: folders whose changes do not matter to the caller.
    """
    paths = (".", *_NO_CODE, *(f":!{folder}" for folder in unused))
    name = _git("log", "-1", "--format=%h", "--", *paths)
    return name + ("+" if _git("status", "--porcelain", "--untracked-files=no", "--", *paths) else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
