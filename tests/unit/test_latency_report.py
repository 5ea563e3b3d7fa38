"""The report and the picture of the latencies."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import latency
from benchmarks.distributions import picture
from benchmarks.latency import BALANCE, IDLE, REDEMPTION, Samples

ALONE, ALL = latency.VARIANTS
LOADED = "200 invoices/s"


def samples(*of_balances: float) -> Samples:
    found = Samples(steal={LOADED: 0.25})
    found.milliseconds[BALANCE, LOADED] += of_balances
    found.milliseconds[REDEMPTION, IDLE] += [30.0, 30.0]
    return found


def test_a_figure_is_the_median_of_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "REPORT", tmp_path / "reports" / "latency.json")
    monkeypatch.setattr(latency, "PICTURE", tmp_path / "reports" / "latency.svg")
    runs = {ALONE: [samples(100.0, 300.0), samples(500.0, 700.0), samples(800.0, 800.0)], ALL: [samples(50.0, 50.0)]}
    latency.write(runs, {"rate": 200}, LOADED)

    rows = json.loads((tmp_path / "reports" / "latency.json").read_text())["rows"]
    figures = {(row["work"], row["load"]): row for row in rows}
    loaded = figures[f"{BALANCE}, {ALONE}", LOADED]
    assert (600, 698, 6, 0.25) == tuple(loaded[name] for name in ("p50_ms", "p99_ms", "samples", "steal"))
    assert {"p99 ≤ 600 ms", "p99 ≤ 1,000 ms"} == {row["goal"] for row in rows if row["work"].startswith(BALANCE)}
    assert {""} == {row["goal"] for row in rows if row["load"] == IDLE}
    assert len(rows) == len(curves((tmp_path / "reports" / "latency.svg").read_text()))


def curves(svg: str) -> list[list[tuple[float, float]]]:
    points = [re.findall(r"([\d.]+),([\d.]+)", curve) for curve in re.findall(r'polyline points="([^"]*)"', svg)]
    return [[(float(x), float(y)) for x, y in curve] for curve in points]


def test_the_curve_of_a_distribution_rises_from_its_least_to_its_largest_value() -> None:
    svg = picture({"<one>": [10.0, 20.0, 100.0], "other": [1.0]}, "ms", "share")
    first, other = curves(svg)
    assert first == sorted(first, key=lambda point: (point[0], -point[1]))
    # The axis has two decades, from 1 to 100. SVG counts downwards.
    assert first[-1][0] - first[0][0] == pytest.approx((first[-1][0] - other[0][0]) / 2, abs=0.1)
    assert first[0][1] > first[-1][1]
    assert "&lt;one&gt;" in svg
