"""The report var/reports/peers.json: a list of comparisons, each with its command, machine and versions.

docs/lab/peers.json has those of the document, so that a run on another machine replaces only what it measures.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.peers import setup
from benchmarks.reports import write_report
from infra.local.folders import ROOT
from infra.site.markdown import write_part
from tests.support.checkout import commit

REPORT = Path("var/reports/peers.json")
DOCUMENT = ROOT / "docs" / "lab" / "benchmarks.md"
KEPT = DOCUMENT.with_name("peers.json")

Entry = dict[str, Any]
"""Fields: work, ours, peer, peer_name, ratio (ours / peer), ratio_per_cpu_second, runs, goal, command, options,
machine, versions. A higher ratio_per_cpu_second is better, except for the work growth, whose figures are costs.
"""


def read() -> list[Entry]:
    """The comparisons of this machine, or those of the repository before the first run."""
    path = REPORT if REPORT.exists() else KEPT
    entries: list[Entry] = json.loads(path.read_text(encoding="utf-8"))
    return entries


def keep(entries: list[Entry], command: str, options: dict[str, Any]) -> None:
    """Add comparisons to the report. They replace older ones of the same work and peer."""
    measured = {
        "command": command,
        "options": options,
        "machine": machine(),
        "versions": {"retail-loyalty": commit(), **setup.versions()},
    }
    new = {(entry["work"], entry["peer_name"]): entry | measured for entry in entries}
    kept = {(entry["work"], entry["peer_name"]): entry for entry in read()}
    write_report(REPORT, [*(kept | new).values()])


def into_document(section: str) -> None:
    """Write the section into the document, and the comparisons into docs/lab/peers.json."""
    write_part(DOCUMENT, "peers", section)
    write_report(KEPT, read())
