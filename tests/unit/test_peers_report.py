"""The report against the peers, and its way into docs/lab/benchmarks.md."""

import json
import shutil
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import document, report, setup
from benchmarks.pipeline import Seen, Watch, figures

ENTRY = {
    "work": "loyalty, invoices/s",
    "ours": 1500.0,
    "peer": 500.0,
    "peer_name": "Faust",
    "ratio": 3.0,
    "ratio_per_cpu_second": 2.5,
    "runs": {
        "ours": [{"invoices_per_second": 1400.0}, {"invoices_per_second": 1500.0}, {"invoices_per_second": 1600.0}],
        "Faust": [{"invoices_per_second": 500.0}],
    },
    "goal": "≥ 3",
}
MEASURED = {
    "command": "python -m benchmarks.peers --only throughput",
    "machine": {"cpu": "a processor", "cores": 2, "memory_gib": 24, "system": "Linux", "python": "3.11.7"},
    "versions": {"Faust": "0.15.3"},
}


def test_a_comparison_is_kept_until_it_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part measured alone replaces its own comparisons and leaves the others."""
    monkeypatch.setattr(report, "REPORT", tmp_path / "peers.json")
    report.keep([ENTRY, ENTRY | {"peer_name": "Quix Streams"}], "first", {})
    report.keep([ENTRY | {"ratio": 4.0}], "second", {})
    kept = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    assert [("Faust", 4.0, "second"), ("Quix Streams", 3.0, "first")] == [
        (entry["peer_name"], entry["ratio"], entry["command"]) for entry in kept
    ]


def test_the_section_has_ratios_medians_and_spread() -> None:
    """What was measured is in the document: the comparison, and of each contender the median and both ends."""
    text = document.section([ENTRY | MEASURED])
    assert "| loyalty, invoices/s | Faust | 1,500 | 500 | 3 | 2.5 | ≥ 3 |" in text
    assert "| loyalty, invoices/s | ours | 3 | 1,500 (1,400 to 1,600) |" in text
    assert f"ours   {'█' * 40} 1,500" in text
    assert f"Faust  {'█' * 13} 500" in text


def test_the_document_has_a_place_for_it() -> None:
    """docs/lab/benchmarks.md takes the section; what stands around it stays."""
    found = document.DOCUMENT.read_text(encoding="utf-8")
    written = document.replaced(found, "measured")
    assert found.partition(document.BEGIN)[0] == written.partition(document.BEGIN)[0]
    assert found.partition(document.END)[2] == written.partition(document.END)[2]
    assert f"{document.BEGIN}\n\nmeasured\n{document.END}" in written


def test_processor_time_is_spread_evenly_between_two_looks() -> None:
    """A moment between two looks has its share of what was used between them."""
    watch = Watch(psutil.Process(), history=[Seen(10.0, 2.0, 0), Seen(12.0, 3.0, 0)])
    assert 2.25 == watch.cpu_seconds_at(10.5)


def test_a_rate_counts_from_the_end_of_the_warm_up() -> None:
    """Rows and processor time of the micro-batches behind the warm-up, over the time between the two ends."""
    batches = [
        {"rows": rows, "ms": 1_000, "timestamp": f"1970-01-01T00:00:{second}+00:00"}
        for rows, second in ((50, 10), (100, 12), (300, 14))
    ]
    watch = Watch(psutil.Process(), history=[Seen(10.0, 1.0, 2**20), Seen(14.0, 3.0, 2**21)])
    found = figures(batches, watch, 1)
    assert (100.0, 5.0, 2) == (
        found["invoices_per_second"],
        found["cpu_seconds_per_1000_invoices"],
        found["peak_memory_mib"],
    )
    with pytest.raises(RuntimeError, match="3 micro-batches are warm-up alone"):
        figures(batches, watch, 3)


def test_without_a_compiler_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a JRE alone is told which package is missing."""
    monkeypatch.setattr(setup, "java", lambda: tmp_path / "java")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(setup.PeersSetupError, match=r"^no javac 17 or newer found: install one .*jdk-headless\)$"):
        setup.find_compiler()
