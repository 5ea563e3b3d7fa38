"""The report of the comparison with peers, and how it enters docs/lab/benchmarks.md."""

import json
import shutil
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import document, report, setup
from benchmarks.pipeline import ResourceSample, Watch, figures

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
    """A new measurement of one part replaces the comparisons of that part only."""
    monkeypatch.setattr(report, "REPORT", tmp_path / "peers.json")
    monkeypatch.setattr(report, "KEPT", tmp_path / "kept.json")
    report.KEPT.write_text("[]", encoding="utf-8")
    report.keep([ENTRY, ENTRY | {"peer_name": "Quix Streams"}], "first", {})
    report.keep([ENTRY | {"ratio": 4.0}], "second", {})
    kept = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    assert [("Faust", 4.0, "second"), ("Quix Streams", 3.0, "first")] == [
        (entry["peer_name"], entry["ratio"], entry["command"]) for entry in kept
    ]


def test_a_run_of_one_part_keeps_the_other_results_of_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without a report, the results of the repository stay in the document."""
    for name, file in {"REPORT": "report.json", "DOCUMENT": "benchmarks.md", "KEPT": "kept.json"}.items():
        monkeypatch.setattr(report, name, tmp_path / file)
    report.KEPT.write_text(json.dumps([ENTRY | MEASURED | {"work": "growth"}]), encoding="utf-8")
    report.DOCUMENT.write_text("<!-- peers -->\n<!-- /peers -->", encoding="utf-8")
    report.keep([ENTRY], "python -m benchmarks.peers --only throughput", {})
    document.main()
    written = report.DOCUMENT.read_text(encoding="utf-8")
    assert "| growth | Faust |" in written
    assert "| loyalty, invoices/s | Faust |" in written
    assert ["growth", "loyalty, invoices/s"] == [each["work"] for each in json.loads(report.KEPT.read_text("utf-8"))]


def test_the_section_has_ratios_medians_and_spread() -> None:
    """The document shows each comparison, and the median and range of each contender."""
    text = document.section([ENTRY | MEASURED])
    assert "| loyalty, invoices/s | Faust | 1,500 | 500 | 3 | 2.5 | ≥ 3 |" in text
    assert "| loyalty, invoices/s | ours | 3 | 1,500 (1,400 to 1,600) |" in text
    assert f"ours   {'█' * 40} 1,500" in text
    assert f"Faust  {'█' * 13} 500" in text


def test_processor_time_is_interpolated_between_two_samples() -> None:
    """The interpolation is linear."""
    watch = Watch(psutil.Process(), history=[ResourceSample(10.0, 2.0, 0), ResourceSample(12.0, 3.0, 0)])
    assert 2.25 == watch.cpu_seconds_at(10.5)


def test_a_rate_counts_from_the_end_of_the_warm_up() -> None:
    """A rate counts rows and processor time of the micro-batches after the warm-up only."""
    batches = [
        {"rows": rows, "ms": 1_000, "timestamp": f"1970-01-01T00:00:{second}+00:00"}
        for rows, second in ((50, 10), (100, 12), (300, 14))
    ]
    watch = Watch(psutil.Process(), history=[ResourceSample(10.0, 1.0, 2**20), ResourceSample(14.0, 3.0, 2**21)])
    found = figures(batches, watch, 1)
    assert (100.0, 5.0, 2) == (
        found["invoices_per_second"],
        found["cpu_seconds_per_1000_invoices"],
        found["peak_memory_mib"],
    )
    with pytest.raises(RuntimeError, match="all 3 micro-batches are warm-up"):
        figures(batches, watch, 3)


def test_a_missing_compiler_is_an_error_that_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error on a machine with a JRE but no JDK names the missing package."""
    monkeypatch.setattr(setup, "java", lambda: tmp_path / "java")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(
        setup.PeersSetupError, match=r"^no javac 17 or newer found: install one, for example .*jdk-headless$"
    ):
        setup.find_compiler()
