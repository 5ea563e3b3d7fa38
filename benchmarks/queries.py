"""Measure interactive queries: restore, reads, and a kill of an owner under load (``make bench-queries``).

The benchmark uses a real broker, API processes and HTTP. Requests per core use only the processor time of the server,
so the load generator does not count. A bare server and a plain consumer alternate with the API in the same run. A ratio
is the median of the ratios of the pairs. Writes var/reports/queries.json.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from benchmarks import load, restores
from benchmarks.brokers import broker
from benchmarks.compared_reads import authenticated_reads, reads_of_checkouts
from benchmarks.instances import (
    metadata,
    owners,
    per_core,
    process_of,
    served_by,
    start_instance,
    state_dir_of,
)
from benchmarks.machine import machine
from benchmarks.reports import publish_report
from benchmarks.resources import file_bytes
from infra.local.ports import HOST, free_port
from services.messaging.administration import create_topics
from services.settings import Settings
from tests.support.kafka import BalanceWriter
from tests.support.processes import ApiProcess, balance_partitions
from tests.support.read_load import Load, Writer
from tests.support.waiting import POLL_SECONDS, wait_for

REPORT = Path("var/reports/queries.json")
_POLL_SECONDS = 0.1
STANDBY_CARDS = [f"CARD{number}" for number in range(45)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--balances", type=int, default=1_000_000, help="number of balances to restore")
    parser.add_argument("--rate", type=int, default=400, help="requests per second while latency is measured")
    parser.add_argument("--seconds", type=int, default=15, help="duration of each measurement of reads")
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds of both servers, one after the other")
    parser.add_argument("--restores", type=int, default=2, help="number of restores, each followed by a plain consumer")
    parser.add_argument("--only", choices=PARTS, help="run only this part of the benchmark")
    parser.add_argument("--checkout", help="only compare reads with this other checkout")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, broker(Path(name)) as settings:
        report: dict[str, Any] = {"machine": machine(), "options": vars(options)}
        parts = [PARTS[options.only]] if options.only else [*PARTS.values()]
        for measure in [reads_of_checkouts] if options.checkout else parts:
            report |= measure(settings, Path(name), options)
    publish_report(REPORT, report)


def death_of_an_owner(settings: Settings, directory: Path, _: argparse.Namespace) -> dict[str, Any]:
    """Kill one of three instances whose partitions have a standby, while readers check every response."""
    settings = settings.model_copy(update={"topic_prefix": "death-"})
    create_topics(settings)
    writer = Writer(BalanceWriter(settings), STANDBY_CARDS)
    with ExitStack() as stack:
        instances = [
            stack.enter_context(start_instance(settings, directory, f"death-{number}", standbys=1))
            for number in range(3)
        ]
        for instance in instances:
            instance.wait_until_ready()
        wait_for("all standbys", lambda: all(_standbys(instance) == 3 for instance in instances))
        alive = list(instances)
        load_on_all = stack.enter_context(Load(writer, lambda: [each.url for each in alive]))
        wait_for("200 answers", lambda: load_on_all.findings.answers > 200)
        doomed = alive.pop()
        doomed.kill()
        answered = load_on_all.findings.answers
        wait_for("500 more answers", lambda: load_on_all.findings.answers > answered + 500)
        wait_for("two owners", lambda: all(owners(instance) == 2 for instance in alive))
        stack.pop_all().close()
    findings = load_on_all.findings
    return {
        "wrong_answers": len(findings.wrong),
        "unavailable_seconds": round(findings.longest_failure, 2),
        "failed_requests": findings.failed,
        "max_stale_records": findings.most_stale,
        "checked_answers": findings.answers,
    }


def restore_and_reads(settings: Settings, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    create_topics(settings)
    restores.write_balances(settings, options.balances)
    with ExitStack() as stack:
        pairs = [_restore_and_leave(settings, directory, options) for _ in range(options.restores - 1)]
        restored, first = _restore(stack, settings, directory, options.balances)
        pairs.append((restored, restores.read_into_nothing(settings)))
        paths = [f"/v1/customers/{restores.card(number * 7919 % options.balances)}/balance" for number in range(2_000)]
        local = _against_bare_server(first, paths, options)
        second = stack.enter_context(start_instance(settings, directory, "second"))
        wait_for("two owners", lambda: owners(first) == 2 and owners(second) == 2)
        second.wait_until_ready()
        elsewhere = [path for path in paths if served_by(first, path) != first.url]
        forwarded = load.run(first.url, elsewhere, rate=options.rate / 4, seconds=options.seconds)
        return {
            **restores.compared(pairs),
            **local,
            "forwarded_p50_ms": round(forwarded.percentile(50), 2),
            "forwarded_p99_ms": round(forwarded.percentile(99), 2),
            "forwarded_statuses": dict(forwarded.statuses),
        }


PARTS: dict[str, Callable[[Settings, Path, argparse.Namespace], dict[str, Any]]] = {
    "failover": death_of_an_owner,
    "authenticated": authenticated_reads,
    "restore": restore_and_reads,
}


def _restore_and_leave(
    settings: Settings, directory: Path, options: argparse.Namespace
) -> tuple[dict[str, float], dict[str, float]]:
    with ExitStack() as stack:
        restored, first = _restore(stack, settings, directory, options.balances)
        first.terminate()
    shutil.rmtree(state_dir_of(directory, "first"))
    return restored, restores.read_into_nothing(settings)


def _restore(
    stack: ExitStack, settings: Settings, directory: Path, balances: int
) -> tuple[dict[str, float], ApiProcess]:
    """Records per second from the first record to readiness, and the memory for each key beyond an empty instance."""
    empty = settings.model_copy(update={"topic_prefix": "empty-"})
    create_topics(empty)
    with start_instance(empty, directory, "empty") as instance:
        instance.wait_until_ready()
        resident_empty = process_of(instance).memory_info().rss
    first = stack.enter_context(start_instance(settings, directory, "first"))
    begun = None
    while begun is None:  # measure from the first record on, to exclude the start of Python and of the web server
        report = first.wait_until(lambda report: any(each["applied"] for each in report["partitions"]), POLL_SECONDS)
        begun, before = time.monotonic(), sum(each["applied"] for each in balance_partitions(report))
        cpu_before = sum(process_of(first).cpu_times()[:2])
    while not _is_ready(first):  # poll rarely, because a response takes processor time from the restore
        time.sleep(_POLL_SECONDS)
    seconds = time.monotonic() - begun
    process = process_of(first)
    return {
        "restore_records_per_second": (balances - before) / seconds,
        "restore_seconds": seconds,
        "restore_cpu_microseconds": (sum(process.cpu_times()[:2]) - cpu_before) / (balances - before) * 1e6,
        "bytes_per_key": (process.memory_info().rss - resident_empty) / balances,
        "disk_bytes_per_key": file_bytes(state_dir_of(directory, "first")) / balances,
    }, first


def _against_bare_server(instance: ApiProcess, paths: list[str], options: argparse.Namespace) -> dict[str, Any]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.bare_server", str(port)]
    bare = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        bare_url = f"http://{HOST}:{port}"
        wait_for("the bare server", lambda: _answers(bare_url))
        ours: list[float] = []
        theirs: list[float] = []
        rates: list[float] = []
        seconds = options.seconds / options.rounds
        for _ in range(options.rounds):
            ours.append(per_core([process_of(instance)], instance.url, paths, seconds, rates))
            theirs.append(per_core([bare], bare_url, paths, seconds))
        steady = load.run(instance.url, paths, rate=options.rate, seconds=options.seconds)
        return {
            "local_rps_per_core": round(median(ours)),
            "bare_server_rps_per_core": round(median(theirs)),
            "ratio_to_bare_server": round(median(a / b for a, b in zip(ours, theirs, strict=True)), 3),
            "rounds": [[round(a), round(b)] for a, b in zip(ours, theirs, strict=True)],
            "local_rps": round(median(rates)),
            "local_p50_ms": round(steady.percentile(50), 2),
            "local_p99_ms": round(steady.percentile(99), 2),
            "local_statuses": dict(steady.statuses),
        }
    finally:
        bare.terminate()
        bare.wait(10)


def _standbys(instance: ApiProcess) -> int:
    return sum(len(each["standby"]) for each in metadata(instance))


def _is_ready(instance: ApiProcess) -> bool:
    return instance.http.get("/readyz").is_success


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    main()
