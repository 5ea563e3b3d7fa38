"""Measure the time from a till to a balance, and from a redemption to its answer (``make bench-latency``).

Invoices arrive at a steady rate. For some of them the benchmark measures the time from the publication until the API
serves a balance that includes the invoice. The append times of the broker divide this time into parts. Everything runs
on one machine, so there is only one clock. At the same time the benchmark sends redemptions, and measures them from
their scheduled time. There are two variants: the loyalty query alone, and everything that ``make up`` starts. Each run
starts a new stack. Writes var/reports/latency.json and var/reports/latency.svg.

Three figures show how loaded the machine was: the time of the broker to append a record, the share of processor time
that the hypervisor gave to other machines (steal), and the load average, which includes other programs on this machine.
"""

import argparse
import json
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil

from api.http.parameters import LONGEST_TIMEOUT_SECONDS
from benchmarks.distributions import picture
from benchmarks.machine import machine
from benchmarks.reports import write_report
from infra.demo.oracle import Sent, expect
from infra.demo.trading_day import simulated
from infra.docker.healthy import is_healthy
from infra.local.stack import LocalStack, private_settings
from schemas import topics
from services.messaging.avro import decoder, encoder
from services.messaging.publishing import Publisher, connected_producer
from services.messaging.schema_ids import FolderSchemaIds
from services.pos_simulator.simulation import Options
from services.settings import Settings
from tests.support.builders import invoice
from tests.support.kafka import read_all

REPORT = Path("var/reports/latency.json")
PICTURE = REPORT.with_suffix(".svg")

VARIANTS: dict[str, tuple[str, ...]] = {"loyalty query alone": ("loyalty",), "everything that make up starts": ()}
"""The queries of each variant. Empty: all queries in two drivers, and the other parts that ``make up`` starts."""

BALANCE, REDEMPTION = "publish to balance over HTTP", "redemption to answer"
PARTS = ("publish to append", "append to balance appended", "balance appended to answer", BALANCE)
FIRST_BALANCE = "start of all parts to first balance"
ALL_STARTED = "start of all parts"
IDLE = "idle"
_IDLE_RATE = 2.0
_WATCHED_A_SECOND = 5.0
_REDEMPTIONS_A_SECOND = 2.0
REDEEMING_CARDS = [f"REDEEMS{number}" for number in range(20)]
_WATCHERS = 64
_TIMEOUT_SECONDS = 300.0
_IDS = FolderSchemaIds()
_FACTOR = Decimal("0.02")


class Load(NamedTuple):
    """Invoices (``rate``) and redemptions per second, for a number of seconds. The name is None for a warm-up."""

    name: str | None
    seconds: float
    rate: float
    redemptions: float = 0.0


@dataclass(frozen=True)
class Watched:
    """A sampled invoice. The balance includes it from this sequence number on. Times are seconds since the epoch."""

    load: str
    number: str
    card: str
    sequence: int
    published: float
    answered: Future[float]


@dataclass
class Samples:
    """The measurements of one run.

    Attributes:
        milliseconds: the latencies, by work and load.
        steal: the share of processor time that the hypervisor gave to other machines, by load.
        load_average: the load average of the last minute, at the end of each load.
        periods: the start and the end of each load, in seconds since the epoch.
    """

    milliseconds: defaultdict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    steal: dict[str, float] = field(default_factory=dict)
    load_average: dict[str, float] = field(default_factory=dict)
    periods: dict[str, tuple[float, float]] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each variant; the variants alternate")
    parser.add_argument("--rate", type=int, default=200, help="invoices per second under load")
    parser.add_argument("--seconds", type=float, default=60, help="duration of each measurement")
    parser.add_argument("--warm-up", type=float, default=60, help="seconds under load before the measurements")
    parser.add_argument("--customers", type=int, default=5_000, help="number of customers")
    parser.add_argument("--variant", choices=list(VARIANTS), action="append", help="measure only this variant")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting of the stack"
    )
    options = parser.parse_args()
    changes = dict(change.split("=", 1) for change in options.set)
    loaded = f"{options.rate} invoices/s"
    loads = [
        Load(None, options.warm_up, options.rate, _REDEMPTIONS_A_SECOND),
        Load(IDLE, options.seconds, _IDLE_RATE, _REDEMPTIONS_A_SECOND / 2),
        Load(loaded, options.seconds, options.rate, _REDEMPTIONS_A_SECOND),
    ]
    runs: dict[str, list[Samples]] = defaultdict(list)
    for _ in range(options.runs):
        for variant in options.variant or VARIANTS:
            with tempfile.TemporaryDirectory() as directory:
                drivers = 1 if VARIANTS[variant] else 2
                settings = private_settings(Path(directory), **{"pipeline_drivers": drivers} | changes)
                with started(Path(directory), settings, VARIANTS[variant]) as stack:
                    runs[variant].append(measure(stack, loads, options.customers))
            write(runs, vars(options), loaded)


def write(runs: Mapping[str, Sequence[Samples]], options: Mapping[str, Any], loaded: str) -> None:
    """Write the report and the picture, and print the rows. Each figure is the median of the runs."""
    rows, shown = [], {}
    for variant, samples in runs.items():
        for work, load in samples[0].milliseconds:
            series = [run.milliseconds[work, load] for run in samples]
            percentiles = np.array([np.percentile(values, (50, 99)) for values in series]).round()
            row = {
                "work": f"{work}, {variant}",
                "load": load,
                "p50_ms": median(percentiles[:, 0]),
                "p99_ms": median(percentiles[:, 1]),
                "goal": _goal(work, load, variant, loaded),
                "samples": sum(map(len, series)),
                "steal": round(median(run.steal.get(load, 0.0) for run in samples), 3),
                "load_average": round(median(run.load_average.get(load, 0.0) for run in samples), 1),
                "runs": percentiles.tolist(),
            }
            rows.append(row)
            if work in (BALANCE, REDEMPTION):
                shown[f"{row['work']}, {load}"] = [value for values in series for value in values]
            print(json.dumps(row), flush=True)
    write_report(REPORT, {"machine": machine(), "options": options, "rows": rows})
    PICTURE.write_text(picture(shown, "milliseconds", "share of all samples"), encoding="utf-8")


def _goal(work: str, load: str, variant: str, loaded: str) -> str:
    if work == FIRST_BALANCE:
        return "≤ 25,000 ms"
    if load != loaded:
        return ""
    if work == REDEMPTION:
        return "p50 ≤ 500 ms, p99 ≤ 1,000 ms"
    goals = dict(zip(VARIANTS, ("p99 ≤ 600 ms", "p99 ≤ 1,000 ms"), strict=True))
    return goals[variant] if work == BALANCE else ""


@contextmanager
def started(directory: Path, settings: Settings, queries: Sequence[str]) -> Iterator[LocalStack]:
    """A stack of Kafka, a pipeline with these queries and one API instance. Without queries, all parts of ``make up``.

    The caller starts the stack. It is stopped at the end of the block.
    """
    stack = LocalStack(directory, settings)
    if queries:
        arguments = tuple(word for query in queries for word in ("--query", query))
        stack.pipeline, stack.readers = replace(stack.pipeline, arguments=arguments), []
    try:
        yield stack
    finally:
        stack.stop()


def measure(stack: LocalStack, loads: Sequence[Load], customers: int) -> Samples:
    """Start the stack, and send these loads one after the other. The first invoices do not wait for all parts."""
    samples = Samples()
    count = sum(int(load.seconds * load.rate) for load in loads)
    sent = [*_first_invoices(), *simulated(Options(count, customers=customers, repeats=0, broken=0), _IDS)]
    begun = time.time()
    with ExitStack() as resources:
        starting = resources.enter_context(ThreadPoolExecutor(1)).submit(stack.start)
        while not is_healthy(f"{stack.api_url}/readyz"):
            if starting.done():
                starting.result()
            time.sleep(0.1)
        run = _Run(stack, sent, resources)
        run.send_first(len(REDEEMING_CARDS))
        samples.milliseconds[FIRST_BALANCE, IDLE].append((time.time() - begun) * 1000)
        starting.result()
        samples.milliseconds[ALL_STARTED, IDLE].append((time.time() - begun) * 1000)
        for load in loads:
            before, load_begun = psutil.cpu_times(), time.time()
            run.send(load)
            if load.name:
                samples.periods[load.name] = load_begun, time.time()
                samples.steal[load.name] = _steal(before, psutil.cpu_times())
                samples.load_average[load.name] = psutil.getloadavg()[0]
            run.wait()
        for name, redeemed in run.redemptions:
            samples.milliseconds[REDEMPTION, name].append(redeemed.result() * 1000)
        answered = {each: each.answered.result() for each in run.watched}
    appended, balances = _append_times(stack.settings, {each.number for each in answered})
    for each, answer in answered.items():
        append = appended[each.number]
        balance = next(time for sequence, time in balances[each.card] if sequence >= each.sequence)
        for part, seconds in zip(
            PARTS, (append - each.published, balance - append, answer - balance, answer - each.published), strict=True
        ):
            samples.milliseconds[part, each.load].append(seconds * 1000)
    return samples


def _first_invoices() -> list[Sent]:
    """Invoices that earn the points for all redemptions. Simulated customers have other cards."""
    encode = encoder(topics.POS_INVOICES, _IDS)
    invoices = [invoice(f"FIRST-{card}", card, 100_000.0) for card in REDEEMING_CARDS]
    return [Sent(b"STR1", encode(each), each) for each in invoices]


class _Run:
    """Publishes invoices in order, and measures some of them."""

    def __init__(self, stack: LocalStack, sent: Sequence[Sent], resources: ExitStack) -> None:
        self._messages = iter(enumerate(sent))
        self._readings = expect(sent, _FACTOR).readings
        self._topic = stack.settings.name_of(topics.POS_INVOICES)
        limits = httpx.Limits(max_connections=None)
        timeout = LONGEST_TIMEOUT_SECONDS + 5
        client = httpx.Client(base_url=stack.api_url, timeout=timeout, limits=limits, trust_env=False)
        self._client = resources.enter_context(client)
        self._pool = resources.enter_context(ThreadPoolExecutor(_WATCHERS))
        producer = connected_producer(stack.settings, "benchmark", [self._topic])
        self._publisher = resources.enter_context(Publisher(producer))
        self._newest = self._readings[0]
        self.watched: list[Watched] = []
        self.redemptions: list[tuple[str, Future[float]]] = []

    def send_first(self, count: int) -> None:
        """Publish this number of invoices, and wait until the API serves their balances."""
        for _ in range(count):
            self._publish_next()
        self._publisher.poll(1.0)
        for number in range(count):
            self._answered(*self._readings[number])

    def send(self, load: Load) -> None:
        """Send a load, and poll the balances of sampled invoices from the moment of publication."""
        started = time.time()
        next_watch = next_redemption = 0.0
        for place in range(int(load.seconds * load.rate)):
            due = place / load.rate
            while (left := started + due - time.time()) > 0:
                self._publisher.poll(min(left, 0.05))
            if load.redemptions and due >= next_redemption:
                answer = self._pool.submit(self._redeem, started + due)
                next_redemption += 1 / load.redemptions
                if load.name:
                    self.redemptions.append((load.name, answer))
            number, message = self._publish_next()
            if load.name and due >= next_watch and number in self._readings:
                card, sequence = self._readings[number]
                now = time.time()
                answer = self._pool.submit(self._answered, card, sequence)
                name = str((message.invoice or {})["InvoiceNumber"])
                self.watched.append(Watched(load.name, name, card, sequence, now, answer))
                next_watch += 1 / _WATCHED_A_SECOND

    def wait(self) -> None:
        """Wait until all published invoices are processed, so that the next load starts without a backlog."""
        self._answered(*self._newest)

    def _publish_next(self) -> tuple[int, Sent]:
        number, message = next(self._messages)
        self._publisher.publish(self._topic, message.key, message.value)
        self._publisher.poll(0)
        self._newest = self._readings.get(number, self._newest)
        return number, message

    def _answered(self, card: str, sequence: int) -> float:
        """The time of the first response with this sequence number. Raises HTTPStatusError if there is none in time."""
        parameters = {"minSequence": sequence, "timeout": LONGEST_TIMEOUT_SECONDS}
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            answer = self._client.get(f"/v1/customers/{card}/balance", params=parameters)
            if answer.is_success:
                return time.time()
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                answer.raise_for_status()

    def _redeem(self, due: float) -> float:
        """Seconds from the scheduled time until points are reserved. Raises HTTPStatusError or TimeoutError."""
        key = str(uuid.uuid4())
        card = REDEEMING_CARDS[int(due * 1000) % len(REDEEMING_CARDS)]
        answer = self._client.post(
            f"/v1/customers/{card}/redemptions",
            params={"timeout": LONGEST_TIMEOUT_SECONDS},
            headers={"Idempotency-Key": key},
            json={"points": "0.01"},
        )
        answer.raise_for_status()
        if answer.status_code != httpx.codes.CREATED:
            raise TimeoutError(f"no decision about a redemption after {LONGEST_TIMEOUT_SECONDS} s: {answer.text}")
        return time.time() - due


def _append_times(
    settings: Settings, numbers: set[str]
) -> tuple[Mapping[str, float], Mapping[str, list[tuple[int, float]]]]:
    """The append times of these invoices by number, and of all balances with their sequence number by customer.

    Times are seconds since the epoch.
    """
    invoice_of, balance_of = decoder(topics.POS_INVOICES, _IDS), decoder(topics.LOYALTY_BALANCES, _IDS)
    appended: dict[str, float] = {}
    for message in read_all(settings, topics.POS_INVOICES):
        number = invoice_of(message.value() or b"")["InvoiceNumber"]
        if number in numbers:
            appended[number] = message.timestamp()[1] / 1000
    balances: dict[str, list[tuple[int, float]]] = {}
    for message in read_all(settings, topics.LOYALTY_BALANCES):
        record = balance_of(message.value() or b"")
        balances.setdefault(record["CustomerCardNo"], []).append((record["Sequence"], message.timestamp()[1] / 1000))
    return appended, balances


def _steal(before: Any, after: Any) -> float:
    """The share of processor time between two readings that the hypervisor gave to other machines."""
    spent = sum(after) - sum(before)
    return float((after.steal - before.steal) / spent) if spent else 0.0


if __name__ == "__main__":
    main()
