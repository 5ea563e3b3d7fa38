"""The report and the picture of a soak."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.latency import BALANCE, REDEMPTION, Samples
from benchmarks.soak import DISK, MEASURES, PICTURE, QUARTERS, SAMPLES, Resources, rows, shown
from benchmarks.time_series import picture
from tests.unit.test_latency_report import curves


def resources(directory: Path, *parts: tuple[str, int | None]) -> Resources:
    processes = [SimpleNamespace(name=name, pid=pid) for name, pid in parts]
    stack: Any = SimpleNamespace(directory=directory, processes=processes)
    return Resources(stack)


@pytest.mark.program
def test_a_sample_includes_child_processes_and_the_disk(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(2**20))
    found = resources(tmp_path, ("me", os.getpid()), ("ended", None))
    found.sample()
    # The child opens 200 files, which are descriptors of the part.
    waiting = "import sys; files = [open('/dev/null') for _ in range(200)]; print(1, flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", waiting], stdin=pipe, stdout=pipe) as child:
        assert child.stdout
        assert child.stdin
        child.stdout.readline()
        found.sample()
        child.stdin.close()
    before, after = found.values["me", "descriptors"]
    assert after - before >= 200
    assert all(found.values["me", "memory_mib"])
    assert found.values["all", DISK] == pytest.approx([1, 1], abs=0.1)
    assert {("ended", name): [0, 0] for name in MEASURES}.items() <= found.values.items()


def test_a_row_compares_resources_with_the_second_quarter_and_latencies_with_the_first(tmp_path: Path) -> None:
    found = resources(tmp_path)
    found.times = [1.0, 11.0, 21.0, 31.0, 32.0]
    found.values = {("api-1", "threads"): [10.0, 20.0, 30.0, 40.0, 50.0]}
    samples = Samples()
    for number, quarter in enumerate(QUARTERS):
        samples.periods[quarter] = number * 10.0, number * 10.0 + 9
        samples.milliseconds[BALANCE, quarter] += [100.0 * (number + 1)]
        samples.milliseconds[REDEMPTION, quarter] += [200.0]
    figures = {row["what"]: (row["quarters"], row["growth"]) for row in rows(found, samples)}
    assert figures["api-1, threads"] == ([10, 20, 30, 45], 2.25)
    assert figures[f"{BALANCE}, p50 ms"] == ([100, 200, 300, 400], 4)
    assert figures[f"{REDEMPTION}, p99 ms"] == ([200] * 4, 1)


def test_samples_survive_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = resources(tmp_path, ("me", os.getpid()))
    with pytest.raises(ConnectionError), found.sampled():
        raise ConnectionError
    saved = json.loads(SAMPLES.read_text(encoding="utf-8"))
    assert found.times == saved["seconds_since_epoch"]
    assert found.values["me", "threads"] == saved["values"]["me, threads"]
    assert "memory_mib" in PICTURE.read_text(encoding="utf-8")


def test_the_picture_has_a_line_for_each_part_and_measure() -> None:
    values = {("api-1", "threads"): [10.0, 20.0], ("ledger", "threads"): [5.0, 5.0], ("all", DISK): [0.0, 0.0]}
    svg = picture([100.0, 160.0], shown(values))
    rising, flat, empty = curves(svg)
    assert rising[0][0] < rising[1][0]
    assert rising[0][1] > rising[1][1]
    assert flat[0][1] == flat[1][1] == rising[0][1] + (rising[0][1] - rising[1][1]) / 2
    assert empty[0][1] == empty[1][1]
    assert "1 min" in svg
