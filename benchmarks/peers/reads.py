"""Measure reads of balances over HTTP: requests per second of processor time of the server."""

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from benchmarks import load
from benchmarks.brokers import broker
from benchmarks.instances import cpu_seconds
from benchmarks.peers.contenders import faust, kafka_streams
from benchmarks.peers.runs import Command, running
from benchmarks.peers.throughput import OURS
from benchmarks.peers.workload import LOYALTY, Workload
from infra.local.folders import ROOT
from infra.local.ports import HOST, free_port
from services.pos_simulator.simulation import Options
from services.settings import Settings
from tests.support.kafka import BalanceWriter
from tests.support.processes import ApiProcess

STREAMS, FAUST, BARE = "Kafka Streams, interactive query", "Faust, table route", "Starlette, constant answer"
_GOALS = {BARE: "≥ 0.6", STREAMS: "≥ 0.8"}
_ASKED = 2_000
_TIMEOUT_SECONDS = 300.0
_RATE, _PER_CORE = "requests_per_second", "requests_per_cpu_second"


@dataclass(frozen=True)
class Server:
    url: str
    process: psutil.Process


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Entries of the report. Before the measurement, all servers must serve the same balances."""
    day = Options(2 * options.customers, customers=options.customers, repeats=0, broken=0)
    with broker(directory) as settings, ExitStack() as stack:
        workload = Workload(settings, day)
        workload.load()
        servers = _start(stack, workload, directory)
        points = {card: str(sum(earned.values())) for card, earned in workload.expected.earned.items()}
        for name, server in servers.items():
            if name != BARE:
                _wait_for_balances(server.url, points)
        asked = [_path(card) for card in list(points)[:_ASKED]]
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
        for server in servers.values():
            # A warm-up, which is long enough for a JVM to compile its hot code.
            load.run(server.url, asked, rate=None, seconds=options.seconds)
        for _ in range(options.rounds):
            for name, server in servers.items():
                runs[name].append(_measured(server, asked, options.seconds))
                print("reads", name, runs[name][-1], flush=True)
    return [_entry(name, runs) for name in servers if name != OURS]


def _start(stack: ExitStack, workload: Workload, directory: Path) -> dict[str, Server]:
    settings = workload.settings

    def serve(name: str, command: Command, port: int) -> Server:
        (watch,) = stack.enter_context(running([command], directory / name))
        return Server(f"http://{HOST}:{port}", watch.process)

    ports = [free_port() for _ in range(3)]
    streams = kafka_streams(LOYALTY, "at_least_once", port=ports[0])(settings, directory / "streams", "reads-streams")
    table = faust(ports[1])(settings, directory / "faust", "reads-faust")
    bare = Command([sys.executable, "-m", "benchmarks.bare_server", str(ports[2])], {"PYTHONPATH": str(ROOT)})
    return {
        OURS: _our_server(stack, workload, settings, directory),
        STREAMS: serve("streams", streams[0], ports[0]),
        FAUST: serve("faust", table[0], ports[1]),
        BARE: serve("bare", bare, ports[2]),
    }


def _our_server(stack: ExitStack, workload: Workload, settings: Settings, directory: Path) -> Server:
    """The API with the balances that the pipeline would write."""
    changelog = BalanceWriter(settings)
    for card, earned in workload.expected.earned.items():
        changelog.balance(card, str(sum(earned.values())), len(earned))
    changelog.flush()
    own = settings.model_copy(update={"state_dir": directory / "api"})
    api = stack.enter_context(ApiProcess(own, directory / "api.log"))
    api.wait_until_ready()
    return Server(api.url, psutil.Process(api.pid))


def _wait_for_balances(url: str, points: Mapping[str, str]) -> None:
    """Poll every customer until all balances agree with the oracle. Raises TimeoutError."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    left = dict(points)
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        while left:
            for card in list(left):
                try:
                    answer = client.get(_path(card))
                    found = answer.json()["TotalLoyaltyPoints"] if answer.status_code == httpx.codes.OK else None
                except httpx.TransportError as error:
                    found = repr(error)
                if found == left[card]:
                    del left[card]
                    continue
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{url}: {card} has {found}, expected {left[card]}; {len(left)} balances are missing or wrong"
                    )
                time.sleep(0.1)
                break


def _path(card: str) -> str:
    return f"/v1/customers/{card}/balance"


def _measured(server: Server, paths: list[str], seconds: float) -> dict[str, float]:
    before = cpu_seconds([server.process])
    measured = load.run(server.url, paths, rate=None, seconds=seconds)
    used = cpu_seconds([server.process]) - before
    if set(measured.statuses) != {httpx.codes.OK}:
        raise RuntimeError(f"{server.url} answered {measured.statuses}")
    return {
        _RATE: round(measured.requests_per_second),
        _PER_CORE: round(len(measured.latencies) / used),
        "p50_ms": round(measured.percentile(50), 2),
        "p99_ms": round(measured.percentile(99), 2),
    }


def _entry(name: str, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    rate, per_core = (
        tuple(median(run[figure] for run in runs[server]) for server in (OURS, name)) for figure in (_RATE, _PER_CORE)
    )
    return {
        "work": "local balance read, requests/s per core",
        "ours": per_core[0],
        "peer": per_core[1],
        "peer_name": name,
        "ratio": round(rate[0] / rate[1], 3),
        "ratio_per_cpu_second": round(per_core[0] / per_core[1], 3),
        "runs": {OURS: runs[OURS], name: runs[name]},
        "goal": _GOALS.get(name, ""),
    }
