"""Measure whether the memory of the pipeline and the API grows at a steady rate of invoices.

The pipeline first processes the preloaded invoices, which create its customers.
"""

import argparse
import time
from contextlib import closing
from pathlib import Path
from statistics import fmean
from threading import Event, Thread
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient

from benchmarks.peers.rig import rig
from benchmarks.peers.throughput import broker
from benchmarks.pipeline import Watch, load, proportional_bytes
from infra.demo.probes import PipelineProgress, reached
from infra.local.ports import HOST
from pipelines.runtime.query import Query
from pipelines.runtime.query_table import CONTINUOUS
from services.messaging.clients import admin
from services.pos_simulator.simulation import Options
from services.settings import Settings
from services.state_stores.changelog import watermarks

_LOOKS = 12
"""The longest series of samples in the report."""

_LOOK_SECONDS = 5.0
"""Sample rarely, because the kernel walks through all pages to compute shared memory."""

_QUARTERS = 4
_CATCH_UP_SECONDS = 3600.0

_MIB = 2**20


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Entries of the report: memory in the last quarter and in the second quarter, in MiB."""
    if options.duration < _QUARTERS * _LOOK_SECONDS:
        raise ValueError(f"a soak takes {_QUARTERS * _LOOK_SECONDS:.0f} seconds at least")
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
    """Wait until every query reports that it has read its topics. Raises TimeoutError."""
    progress = PipelineProgress(f"http://{HOST}:{settings.metrics_port}/metrics", None)
    client = admin(settings, "benchmark")
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    with closing(progress):
        while not all(_has_read(progress, client, query, settings) for query in CONTINUOUS):
            if time.monotonic() > deadline:
                raise TimeoutError("the pipeline has not caught up")
            time.sleep(_LOOK_SECONDS)
            progress.read()


def _has_read(progress: PipelineProgress, client: AdminClient, query: Query, settings: Settings) -> bool:
    for topic in query.sources:
        name = settings.name_of(topic)
        places = watermarks(client, [(name, number) for number in range(topic.partitions)])
        ends = {number: end for (_, number), (_, end) in places.items()}
        if not reached(progress.positions(query.name, name), ends):
            return False
    return True


def _entry(work: str, watch: Watch) -> dict[str, Any]:
    memory = [seen.memory_bytes / _MIB for seen in watch.history]
    quarter = len(memory) // _QUARTERS
    second, last = fmean(memory[quarter : 2 * quarter]), fmean(memory[-quarter:])
    every = max(1, len(memory) // _LOOKS)
    return {
        "work": work,
        "ours": round(last),
        "peer": round(second),
        "peer_name": "itself in the second quarter",
        "ratio": round(last / second, 3),
        "ratio_per_cpu_second": None,
        "runs": {"memory_mib": [round(value) for value in memory[::every]]},
        "goal": "flat",
    }
