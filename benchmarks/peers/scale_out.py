"""Measure the loyalty query on a local Spark standalone cluster with one worker and with two, each with one core."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pyspark
import stamina

from benchmarks.brokers import broker
from benchmarks.peers.runs import Command, Figures, run_ours, running
from benchmarks.peers.workload import LOYALTY, Workload
from infra.local.folders import ROOT
from infra.local.java import find_java_home
from infra.local.ports import HOST, free_port
from services.pos_simulator.simulation import Options

SIZES = (1, 2)
_RATE = "invoices_per_second"
_SPARK = Path(pyspark.__file__).parent
_DAEMON_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class WorkersMissingError(RuntimeError):
    """The workers have not registered with the master in time."""


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Entry of the report: invoices/s with two workers and with one. Raises WrongOutputError."""
    day = Options(options.invoices, customers=options.customers, repeats=0.01, broken=options.broken)
    runs: dict[int, list[Figures]] = {size: [] for size in SIZES}
    with broker(
        directory, max_offsets_per_trigger=options.batch, shuffle_partitions=options.shuffle_partitions
    ) as settings:
        workload = Workload(settings, day)
        workload.load()
        for number in range(options.rounds):
            for size in SIZES:
                runs[size].append(_run(workload, directory / f"{size}-workers-{number}", size))
                print("scale-out", size, runs[size][-1], flush=True)
    two, one = (median(run[_RATE] for run in runs[size]) for size in reversed(SIZES))
    return [
        {
            "work": "scale-out of loyalty, invoices/s, two workers of a core each",
            "ours": two,
            "peer": one,
            "peer_name": "one worker of a core",
            "ratio": round(two / one, 3),
            "ratio_per_cpu_second": None,
            "runs": {"two workers": runs[2], "one worker": runs[1]},
            "goal": "the same results",
        }
    ]


def _run(workload: Workload, directory: Path, workers: int) -> Figures:
    """Run the query on a new cluster. Leaves out processor time and memory, which are only those of the driver."""
    workload.clear()
    with cluster(directory / "cluster", workers) as master:
        figures = run_ours(workload, LOYALTY, directory / "checkpoints", spark_master=master)
    return {name: figures[name] for name in (_RATE, "first_batch_ms", "seconds")}


@contextmanager
def cluster(directory: Path, workers: int) -> Iterator[str]:
    """Run a master and this number of workers as processes. Yields the master's URL."""
    port, pages = free_port(), free_port()
    master = f"spark://{HOST}:{port}"
    environment = {
        "JAVA_HOME": str(find_java_home()),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS,
        "SPARK_WORKER_DIR": str(directory / "work"),
        # Executors start Python workers in another folder.
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }

    def part(name: str, *arguments: str) -> Command:
        program = f"org.apache.spark.deploy.{name}"
        return Command([str(_SPARK / "bin" / "spark-class"), program, "--host", HOST, *arguments], environment)

    worker = part("worker.Worker", "--cores", "1", "--memory", "2g", "--webui-port", "0", master)
    commands = [part("master.Master", "--port", str(port), "--webui-port", str(pages)), *[worker] * workers]
    with running(commands, directory):
        _wait_for(workers, pages)
        yield master


# While the master starts, its answer is not JSON.
@stamina.retry(on=(httpx.HTTPError, ValueError, WorkersMissingError), attempts=None, timeout=120, wait_max=1)
def _wait_for(workers: int, pages: int) -> None:
    state = httpx.get(f"http://{HOST}:{pages}/json/", trust_env=False).json()
    if state["aliveworkers"] < workers:
        raise WorkersMissingError(f"{state['aliveworkers']} of {workers} workers have registered")
