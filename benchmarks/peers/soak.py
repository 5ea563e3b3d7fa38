"""Whether the memory of the pipeline and of the API stays what it is, at a steady rate of invoices.

What is there before, the pipeline catches up with first: so it has as many customers as that has brought.
"""

import argparse
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from threading import Event, Thread
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.peers.rig import rig
from benchmarks.peers.throughput import broker
from benchmarks.pipeline import Watch, load, proportional_bytes
from infra.local.ports import HOST
from pipelines.queries import CONTINUOUS
from services.pos_simulator import Options
from services.settings import Settings

_LOOKS = 12
"""Of a series that is kept."""

_LOOK_SECONDS = 5.0
"""Seldom: for the share of each page the kernel walks through all of them."""

_CATCH_UP_SECONDS = 3600.0

_MIB = 2**20


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Entries of the report: resident memory in the last quarter against that in the second one, MiB."""
    day = Options(int(options.rate * options.duration), customers=options.customers, broken=options.broken)
    before = Options(options.invoices, seed=2, customers=options.customers, broken=options.broken)
    with broker(directory) as settings, rig(settings, directory / "soak", ()) as stack:
        load(stack.settings, before)
        _wait_until_read(stack.settings)
        watches = {
            name: Watch(process, memory=proportional_bytes, every=_LOOK_SECONDS)
            for name, process in {"pipeline": stack.pipeline, "API": psutil.Process(stack.api.pid)}.items()
        }
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
        accounts = stack.api.http.get("/v1/stores/customer-balances/count").raise_for_status().json()["count"]
    work = f"over {minutes:.0f} min at {options.rate} invoices/s, {accounts:,} accounts at the end, MiB"
    return [_entry(f"memory of the {name} {work}", watch) for name, watch in watches.items()]


def _wait_until_read(settings: Settings) -> None:
    """Until no query has anything left to read, by the pipeline's own word."""
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while _lags(settings) != dict.fromkeys((query.name for query in CONTINUOUS), 0.0):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the pipeline has not caught up: {_lags(settings)}")
        time.sleep(_LOOK_SECONDS)


def _lags(settings: Settings) -> dict[str, float]:
    """Records of all partitions that each query had not read at its last micro-batch."""
    text = httpx.get(f"http://{HOST}:{settings.metrics_port}/metrics", timeout=60, trust_env=False).text
    lags: dict[str, float] = defaultdict(float)
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            if sample.name == "loyalty_query_lag_records":
                lags[sample.labels["query"]] += sample.value
    return dict(lags)


def _entry(work: str, watch: Watch) -> dict[str, Any]:
    resident = [seen.resident_bytes / _MIB for seen in watch.history]
    quarter = len(resident) // 4
    second, last = fmean(resident[quarter : 2 * quarter]), fmean(resident[-quarter:])
    every = max(1, len(resident) // _LOOKS)
    return {
        "work": work,
        "ours": round(last),
        "peer": round(second),
        "peer_name": "itself in the second quarter",
        "ratio": round(last / second, 3),
        "ratio_per_cpu_second": None,
        "runs": {"resident_mib": [round(value) for value in resident[::every]]},
        "goal": "flat",
    }
