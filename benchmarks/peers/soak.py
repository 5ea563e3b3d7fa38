"""Whether the memory of the pipeline and of the API stays what it is, at a steady rate of invoices."""

import argparse
import time
from pathlib import Path
from statistics import fmean
from threading import Event, Thread
from typing import Any

import psutil

from benchmarks.peers.rig import rig
from benchmarks.peers.throughput import broker
from benchmarks.pipeline import Watch, load
from services.pos_simulator import Options

_LOOKS = 12
"""Of a series that is kept."""

_MIB = 2**20


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Entries of the report: resident memory in the last quarter against that in the second one, MiB."""
    day = Options(int(options.rate * options.duration), customers=options.customers, broken=options.broken)
    warm_up = Options(int(options.rate * options.warm_up), seed=2, customers=options.customers, broken=options.broken)
    with broker(directory) as settings, rig(settings, directory / "soak", ()) as stack:
        load(stack.settings, warm_up, options.rate)
        watches = {"pipeline": Watch(stack.pipeline), "API": Watch(psutil.Process(stack.api.pid))}
        ended = Event()
        watchers = [Thread(target=watch.until, args=(ended,), daemon=True) for watch in watches.values()]
        for watcher in watchers:
            watcher.start()
        began = time.time()
        load(stack.settings, day, options.rate)
        ended.set()
        for watcher in watchers:
            watcher.join()
    minutes = (time.time() - began) / 60
    return [_entry(name, watch, minutes, options) for name, watch in watches.items()]


def _entry(name: str, watch: Watch, minutes: float, options: argparse.Namespace) -> dict[str, Any]:
    resident = [seen.resident_bytes / _MIB for seen in watch.history]
    quarter = len(resident) // 4
    second, last = fmean(resident[quarter : 2 * quarter]), fmean(resident[-quarter:])
    every = max(1, len(resident) // _LOOKS)
    return {
        "work": f"memory of the {name} over {minutes:.0f} min at {options.rate} invoices/s, MiB",
        "ours": round(last),
        "peer": round(second),
        "peer_name": "itself in the second quarter",
        "ratio": round(last / second, 3),
        "ratio_per_cpu_second": None,
        "runs": {"resident_mib": [round(value) for value in resident[::every]]},
        "goal": "flat",
    }
