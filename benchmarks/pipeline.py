"""Measure throughput, cost, latency and memory of the queries that read invoices (``make bench``).

Throughput: the benchmark loads a topic, and then a process of each query reads the topic to its end. The first
micro-batch is the warm-up. Latency: all queries run while invoices arrive at a fixed rate. The latency is the
difference between the append times of output and input, so only the clock of the broker matters. Writes
var/reports/pipeline.json.

``--before CHECKOUT`` also measures the queries of another checkout (``git worktree add``), in alternation. Both read
the invoices of the older simulator, because every later version can read them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.brokers import broker
from benchmarks.machine import machine
from benchmarks.reports import medians, publish_report
from benchmarks.resources import every, file_bytes
from infra.local.folders import ROOT
from infra.local.stack import LocalStack, environment_of, private_settings
from schemas import topics
from schemas.topics import Topic
from services.messaging.administration import create_topics
from services.messaging.avro import decoder
from services.messaging.publishing import connected_producer, publish
from services.messaging.schema_ids import FolderSchemaIds
from services.pos_simulator.simulation import Options, Simulation
from services.settings import Settings
from tests.support.kafka import read_all
from tests.support.oracles import is_home_delivery, is_prime

REPORT = Path("var/reports/pipeline.json")
_SAMPLE_SECONDS = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--invoices", type=int, default=30_000, help="number of invoices for the throughput")
    parser.add_argument("--customers", type=int, default=5_000, help="number of customers")
    parser.add_argument("--batch", type=int, default=5_000, help="invoices in each micro-batch")
    parser.add_argument("--rounds", type=int, default=3, help="number of runs of each query")
    parser.add_argument("--rate", type=int, default=50, help="invoices per second for the latency")
    parser.add_argument(
        "--seconds",
        type=int,
        default=60,
        help="duration of the latency measurement, after a warm-up of the same length",
    )
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout to compare with")
    parser.add_argument(
        "--queries", nargs="+", default=["fan-out", "loyalty", "sales"], help="the queries whose throughput is measured"
    )
    parser.add_argument("--only", choices=["throughput"], help="measure only this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        report = {
            "machine": machine(),
            "options": vars(options),
            "throughput": throughput(Path(directory, "throughput"), options),
        }
        if not options.only:
            report["latency"] = latency(Path(directory, "latency"), options)
    publish_report(REPORT, report)


@dataclass(frozen=True)
class Variant:
    """A query of a checkout of this project."""

    query: str
    checkout: Path

    def environment(self, settings: Settings) -> dict[str, str]:
        # The Python workers of Spark start in another folder, and find the modules only by this path.
        return environment_of(settings) | {"PYTHONPATH": str(self.checkout)}


def throughput(directory: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Run each query alone over a topic with the same invoices. The queries alternate."""
    variants = {}
    for query in options.queries:
        if options.before:
            variants[f"{query} before"] = Variant(query, options.before.resolve())
        variants[query] = Variant(query, ROOT)
    loader, *_ = variants.values()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    with broker(directory, max_offsets_per_trigger=options.batch) as settings:
        for number in range(options.rounds):
            for name, variant in variants.items():
                own_name = f"{name.replace(' ', '-')}-{number}"
                own = settings.model_copy(
                    update={"topic_prefix": f"{own_name}-", "checkpoint_dir": str(directory / "checkpoints" / own_name)}
                )
                create_topics(own)
                load_with(
                    loader, own, Options(options.invoices, customers=options.customers, repeats=0.01, broken=0.005)
                )
                runs[name].append(run_to_the_end(variant, own, directory / f"{own_name}.log"))
                print(name, runs[name][-1], flush=True)
    return medians(runs)


def load(settings: Settings, options: Options, rate: float = 0) -> None:
    name = settings.name_of(topics.POS_INVOICES)
    records = ((each.key, each.value) for each in Simulation(options).messages())
    publish(records, connected_producer(settings, "benchmark", [name]), name, rate)


_LOAD = """
import json, sys
from benchmarks.pipeline import load
from services.pos_simulator.simulation import Options
from services.settings import read_settings
load(read_settings(), Options(**json.loads(sys.argv[1])))
"""


def load_with(variant: Variant, settings: Settings, options: Options) -> None:
    """Load the topic with the simulator of the variant's checkout."""
    arguments = {"count": options.count, "customers": options.customers, "repeats": options.repeats}
    command = [sys.executable, "-c", _LOAD, json.dumps(arguments | {"broken": options.broken})]
    subprocess.run(command, env=variant.environment(settings), cwd=variant.checkout, check=True)


class ResourceSample(NamedTuple):
    """The resources of a process and its descendants at one time: all processor time so far, and the current memory."""

    time: float
    cpu_seconds: float
    memory_bytes: int


def proportional_bytes(process: psutil.Process) -> int:
    """Memory of a process. A page that n processes share counts for 1/n (PSS, Linux only)."""
    size: int = process.memory_full_info().pss
    return size


@dataclass
class Watch:
    """Samples processor time and memory (RSS) of a process and all its descendants."""

    process: psutil.Process
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    history: list[ResourceSample] = field(default_factory=list)

    @property
    def peak_bytes(self) -> int:
        return max((seen.memory_bytes for seen in self.history), default=0)

    def sample(self) -> None:
        size = 0
        for member in [self.process, *_descendants(self.process)]:
            try:
                times = member.cpu_times()
                size += member.memory_info().rss
            except psutil.Error:
                continue
            self.cpu_seconds[member.pid] = times.user + times.system
        self.history.append(ResourceSample(time.time(), sum(self.cpu_seconds.values()), size))

    def cpu_seconds_at(self, moment: float) -> float:
        """The processor time used until this moment. Linear interpolation between two samples."""
        times, used, _ = zip(*self.history, strict=True)
        return float(np.interp(moment, times, used))

    def sampled(self) -> AbstractContextManager[None]:
        """Sample until the block ends."""
        return every(_SAMPLE_SECONDS, self.sample)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def run_to_the_end(variant: Variant, settings: Settings, log_file: Path, warm_up: int = 1) -> dict[str, float]:
    """Run one query to the end of its input. Rates exclude the micro-batches of the warm-up.

    Raises RuntimeError if the query fails, or has only micro-batches of the warm-up.
    """
    command = [sys.executable, "-m", "pipelines", "--query", variant.query, "--available-now"]
    with log_file.open("wb") as log:
        process = psutil.Popen(
            command, env=variant.environment(settings), cwd=variant.checkout, stdout=log, stderr=subprocess.STDOUT
        )
        watch = Watch(process)
        with watch.sampled():
            status = process.wait()
    if status:
        # A log line can contain the whole plan of Spark. The cause is at the start of the line.
        end = "\n".join(line[:1000] for line in log_file.read_text(encoding="utf-8").splitlines()[-5:])
        raise RuntimeError(f"{variant.query} ended with status {status}: {end}")
    batches = list(_batches(log_file))
    found = figures(batches, watch, warm_up)
    stored = file_bytes(Path(settings.checkpoint_dir))
    return found | {"checkpoint_bytes_per_invoice": round(stored / sum(batch["rows"] for batch in batches))}


def figures(batches: Sequence[dict[str, Any]], watch: Watch, warm_up: int) -> dict[str, float]:
    """Figures from the logged micro-batches of a query. Raises RuntimeError if all of them are warm-up."""
    measured = batches[warm_up:]
    if not measured:
        raise RuntimeError(f"all {len(batches)} micro-batches are warm-up: use more invoices")
    rows, everything = sum(batch["rows"] for batch in measured), sum(batch["rows"] for batch in batches)
    # The query logs a line at the end of each micro-batch.
    ends = [datetime.fromisoformat(batch["timestamp"]).timestamp() for batch in batches]
    begin, end = ends[warm_up - 1], ends[-1]
    steady = watch.cpu_seconds_at(end) - watch.cpu_seconds_at(begin)
    return {
        "invoices_per_second": round(rows / (end - begin), 1),
        "first_batch_ms": batches[0]["ms"],
        "cpu_seconds_per_1000_invoices": round(steady / rows * 1000, 3),
        "cpu_seconds_per_1000_invoices_with_start": round(sum(watch.cpu_seconds.values()) / everything * 1000, 3),
        "peak_memory_mib": round(watch.peak_bytes / 2**20),
    }


def _batches(log_file: Path) -> Iterator[dict[str, Any]]:
    for line in log_file.read_text(encoding="utf-8").splitlines():
        if line.startswith("{") and '"event": "batch"' in line:
            yield json.loads(line)


def latency(directory: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Milliseconds from the append of an invoice to the append of its output, at a steady rate."""
    settings = private_settings(directory, spark_master="local[2]")
    count = options.rate * options.seconds
    warm_up, measured = (
        Options(count=count, customers=options.customers, repeats=0, broken=0, seed=seed) for seed in (1, 2)
    )
    with LocalStack(directory, settings, api_instances=0):
        for day in (warm_up, measured):
            load(settings, day, options.rate)
        invoices = [message.invoice or {} for day in (warm_up, measured) for message in Simulation(day).messages()]
        _wait_for(settings, topics.LOYALTY, sum(map(is_prime, invoices)))
        _wait_for(settings, topics.SHIPMENT, sum(map(is_home_delivery, invoices)))
        numbers = {str(invoice["InvoiceNumber"]) for invoice in invoices[count:]}
        arrived = _append_times(settings, topics.POS_INVOICES, numbers)
        return {
            query: _spread(arrived, _append_times(settings, topic, numbers))
            for query, topic in {"fan-out": topics.SHIPMENT, "loyalty": topics.LOYALTY}.items()
        }


def _wait_for(settings: Settings, topic: Topic, records: int) -> None:
    deadline = time.monotonic() + 600
    while len(read_all(settings, topic)) < records:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{settings.name_of(topic)} did not reach {records} records")
        time.sleep(1)


def _append_times(settings: Settings, topic: Topic, numbers: set[str]) -> dict[str, int]:
    """By invoice number: the append time of its first record on the topic, in milliseconds."""
    decode = decoder(topic, FolderSchemaIds())
    times: dict[str, int] = {}
    for message in read_all(settings, topic):
        number = decode(message.value() or b"")["InvoiceNumber"]
        if number in numbers:
            times.setdefault(number, message.timestamp()[1])
    return times


def _spread(begun: dict[str, int], ended: dict[str, int]) -> dict[str, float]:
    cuts = quantiles((ended[number] - begun[number] for number in ended), n=100)
    return {"invoices": len(ended), "p50_ms": round(cuts[49]), "p99_ms": round(cuts[98])}


if __name__ == "__main__":
    main()
