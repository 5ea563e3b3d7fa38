"""The report var/reports/peers.json: a list of comparisons, each with its command, machine and versions."""

import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.peers import setup
from benchmarks.reports import write_report
from infra.local import jars

REPORT = Path("var/reports/peers.json")

Entry = dict[str, Any]
"""Fields: work, ours, peer, peer_name, ratio (ours / peer), ratio_per_cpu_second, runs, goal, command, options,
machine, versions. A higher ratio_per_cpu_second is better, except for the work growth, whose figures are costs.
"""


def read() -> list[Entry]:
    entries: list[Entry] = json.loads(REPORT.read_text(encoding="utf-8")) if REPORT.exists() else []
    return entries


def keep(entries: list[Entry], command: str, options: dict[str, Any]) -> None:
    """Add comparisons to the report. They replace older ones of the same work and peer."""
    measured = {"command": command, "options": options, "machine": machine(), "versions": _versions()}
    new = {(entry["work"], entry["peer_name"]): entry | measured for entry in entries}
    kept = {(entry["work"], entry["peer_name"]): entry for entry in read()}
    write_report(REPORT, [*(kept | new).values()])


def _versions() -> dict[str, str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=jars.ROOT, capture_output=True, text=True, check=False
    )
    return {"retail-loyalty": commit.stdout.strip(), **setup.versions()}
