"""`make demo`, as a user runs it, with a short day. The export writes a Delta table; most other tests use Parquet."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import psutil

from infra.local import jars

_PATIENCE_SECONDS = 600
CARDS = "4629185211", "7051101351"


@contextmanager
def _demo(var: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "infra.demo", "--dir", str(var), *arguments]
    # A signal for the demo must not reach the test run.
    demo = subprocess.Popen(command, cwd=jars.ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
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


def test_every_result_of_recorded_invoices_agrees(tmp_path: Path) -> None:
    """Eight lines give one duplicate, one dead letter, one shipment and 5.00 points. No process remains.

    50.00 of invoice 1 remain (1.00 points), and the exchange sells for 150.00 (3.00). All of invoice 4 goes back.
    """
    common = {
        "StoreID": "STR1",
        "CustomerCardNo": CARDS[0],
        "TotalAmount": 100.25,
        "CreatedTime": 1_595_688_900_348,
    }
    delivery = {"DeliveryType": "HOME-DELIVERY", "DeliveryAddress": {"AddressLine": "1 Rd.", "ContactNumber": "266"}}
    items = {"InvoiceLineItems": [{"ItemCode": "1", "ItemPrice": 100.25, "ItemQty": 1, "TotalValue": 100.25}] * 2}
    sofa = {"ItemCode": "2", "TotalValue": 100.25}
    of_1, of_4 = ({"OriginalInvoiceNumber": number} for number in ("1", "4"))
    swapped = [{"ItemCode": "1", "TotalValue": -50.25}, {"ItemCode": "3", "TotalValue": 150}]
    lines = [
        {**common, **items, "InvoiceNumber": "1", "CustomerType": "PRIME"},
        {**common, **delivery, "InvoiceNumber": "2", "CustomerType": "PRIME", "TotalAmount": 50},
        {**common, **items, "InvoiceNumber": "1", "CustomerType": "PRIME"},
        {**common, **items, "InvoiceNumber": "3", "CustomerType": "NONPRIME", "CustomerCardNo": CARDS[1]},
        {**common, "CustomerType": "PRIME", "InvoiceNumber": "4", "InvoiceLineItems": [sofa]},
        {**common, "CustomerType": "PRIME", "InvoiceNumber": "5", "InvoiceLineItems": [sofa], **of_4},
        {**common, "CustomerType": "PRIME", "InvoiceNumber": "6", "InvoiceLineItems": swapped, **of_1},
    ]
    file = tmp_path / "day.jsonl"
    file.write_text("\n".join([*map(json.dumps, lines), "no JSON"]), encoding="utf-8")
    logs: dict[Path, IO[str]] = {}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with ExitStack() as opened, _demo(tmp_path / "var", "--export-format", "delta", str(file)) as demo:
        while demo.poll() is None:
            assert time.monotonic() < deadline
            # The demo deletes its logs. An open file stays readable.
            found = (tmp_path / "var/demo/log").glob("*.log")
            for each in [each for each in found if each not in logs]:
                logs[each] = opened.enter_context(each.open(encoding="utf-8", errors="replace"))
            time.sleep(0.2)
        assert demo.stdout
        output = demo.stdout.read()
        shown = {"the demo": output, **{path.stem: log.read() for path, log in logs.items()}}
    assert demo.returncode == 0, output
    assert output.splitlines()[-1].startswith("The console was at http://127.0.0.1:")
    report = json.loads((tmp_path / "var/reports/demo.json").read_text(encoding="utf-8"))
    expected = {
        "invoices": 8,
        "repeats": 1,
        "shipment": 1,
        "hadoop": 8,
        "parquet_rows": 8,
        "sales": 6,
        "notifications": 6,
        "ledger_entries": 6,
        "dead_letters": 1,
        "points": 5.00,
        "mismatches": 0,
    }
    assert expected == {name: report[name] for name in expected}
    assert report["latency_p50_ms"] > 0
    assert {"pipeline", "api-1", "ledger"} <= shown.keys()
    assert [] == [(name, card) for name, text in shown.items() for card in CARDS if card in text]
    assert _of(tmp_path / "var") == []


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
