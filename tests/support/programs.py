"""Runs programs of the project to their end."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from infra.local.folders import ROOT
from infra.local.stack import environment_of
from services.settings import Settings

REFUSED = 2
"""The exit status of a pipeline that refuses to start, if a restart does not help."""

LOYALTY = Path(sys.executable).with_name("loyalty")

_LONGEST_SECONDS = 600.0


def loyalty(
    settings: Settings, *arguments: str | Path, timeout: float = _LONGEST_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run the command ``loyalty``."""
    return run([LOYALTY, *arguments], settings, timeout=timeout)


def run_pipeline(settings: Settings, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m pipelines``. ``changes`` are environment variables."""
    return run([sys.executable, "-m", "pipelines", *arguments], settings, ROOT, _LONGEST_SECONDS, **changes)


def run(
    command: Sequence[str | Path],
    settings: Settings,
    folder: Path = ROOT,
    timeout: float = _LONGEST_SECONDS,
    **changes: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with these settings. ``stdout`` also contains its stderr. Raises TimeoutExpired."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment_of(settings), **changes},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout,
    )


def last_error(run: subprocess.CompletedProcess[str]) -> str:
    """The last line of the output that reports an error. Empty if there is none."""
    lines = [line for line in run.stdout.splitlines() if "refused" in line or "error" in line.lower()]
    return lines[-1][-400:] if lines else ""
