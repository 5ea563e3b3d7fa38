"""`make demo`, as a user runs it, with a short simulated day. The export writes a Delta table."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from infra.local.folders import ROOT
from services.pos_simulator.simulation import Options, Simulation

_PATIENCE_SECONDS = 600
INVOICES = 200


@contextmanager
def _demo(var: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "infra.demo", "--dir", str(var), *arguments]
    # A signal for the demo must not reach the test run.
    demo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with demo:
        try:
            yield demo
        finally:
            if demo.poll() is None:
                demo.terminate()


def _of(var: Path) -> list[int]:
    """The processes whose command line names this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            texts = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(var) in text for text in texts):
            found.append(process.pid)
    return found


def test_every_result_of_a_simulated_day_agrees(tmp_path: Path) -> None:
    """The day has returns, exchanges, offline tills, imported balances and a replaced card. `loyalty audit` agrees.

    No log has a card, and no process remains.
    """
    var, output = tmp_path / "var", ""
    with _demo(var, "--invoices", str(INVOICES), "--export-format", "delta", "--open") as demo:
        assert demo.stdout
        while "Ctrl-C stops the stack" not in output:  # the demo has compared all results, and its stack still runs
            line = demo.stdout.readline()
            assert line, output
            output += line
        audited = _audit(var)
        logs = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in (var / "demo/log").iterdir()}
        demo.send_signal(signal.SIGINT)
        output += demo.communicate(timeout=_PATIENCE_SECONDS)[0]
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert demo.returncode == 0, output
    report = json.loads((var / "reports/demo.json").read_text(encoding="utf-8"))
    assert (INVOICES + 1, 0) == (report["invoices"], report["mismatches"]), "one return comes after the day"
    assert {"import balances twice", "replace a card"} <= report["phases_seconds"].keys()
    assert report["latency_p50_ms"] > 0
    # All days have the same customers.
    simulated = [message.invoice for message in Simulation(Options(count=INVOICES)).messages() if message.invoice]
    cards = {invoice["CustomerCardNo"] for invoice in simulated}
    assert {"pipeline", "api-1", "ledger"} <= logs.keys()
    assert [] == [name for name, text in logs.items() if cards.intersection(re.findall(r"\d+", text))]
    assert [] == _of(var)


def _audit(var: Path) -> subprocess.CompletedProcess[str]:
    """Run `loyalty audit` with the environment of the pipeline."""
    identity = json.loads((var / "demo/run/pipeline.pid").read_text(encoding="utf-8"))
    command = [Path(sys.executable).with_name("loyalty"), "audit"]
    environment = psutil.Process(identity["pid"]).environ()
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    """SIGTERM while the stack starts ends all its processes, with the exit status of an interruption."""
    with _demo(tmp_path / "var") as demo:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (tmp_path / "var/demo/run/pipeline.pid").exists():
            assert demo.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=_PATIENCE_SECONDS)
    assert demo.returncode == 130
    assert _of(tmp_path / "var") == []
