"""Writes the reports of benchmarks."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

Runs = Mapping[str, list[dict[str, float]]]
"""The figures of each run, by variant."""


def write_report(path: Path, report: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, default=str) + "\n", encoding="utf-8")


def publish_report(path: Path, report: Any) -> None:
    """Write the report, and print it."""
    write_report(path, report)
    print(path.read_text(encoding="utf-8"), end="")


def medians(runs: Runs) -> dict[str, dict[str, float]]:
    """The median of each figure, by variant."""
    return {name: {key: median(run[key] for run in found) for key in found[0]} for name, found in runs.items()}
