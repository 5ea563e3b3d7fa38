"""Measure the latency from an invoice to its balance over HTTP, at a steady rate, and its parts.

The append times of the broker split the path: till to broker, broker to the append of the new balance (pipeline), and
from there to the response (API). All use the clock of the same machine.
"""

import argparse
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from api.http.parameters import LONGEST_TIMEOUT_SECONDS
from benchmarks.peers.rig import Rig, rig
from benchmarks.peers.throughput import broker
from benchmarks.peers.workload import FACTOR, LOYALTY
from infra.demo.oracle import Sent, expect
from infra.demo.trading_day import simulated
from schemas import topics
from services.messaging.avro import decoder
from services.messaging.publishing import Publisher, connected_producer
from services.messaging.schema_ids import FolderSchemaIds
from services.pos_simulator.simulation import Options
from services.settings import Settings
from tests.support.kafka import read_all

_VARIANTS: dict[str, tuple[str, ...]] = {"loyalty query alone": (LOYALTY,), "all queries in one driver": ()}
_SPARKS_OWN = "Spark's own stateful micro-batch, Kafka to Kafka, 1,000 records/s on 15 slots (published)"
_SPARKS_OWN_P99_MS = 463.0
"""apache/spark, connector/kafka-0-10-sql/benchmarks/RTMKafkaTransformWithStateBenchmark-results.txt."""

_WATCHERS = 64
_WATCHED_A_SECOND = 5
_PATIENCE_SECONDS = 300.0
PARTS = ("publish to append", "append to balance appended", "balance appended to answer", "publish to answer")


@dataclass(frozen=True)
class Watched:
    """A sampled invoice. The balance contains it from this sequence number on."""

    number: str
    card: str
    sequence: int
    published: float
    answered: Future[float]


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Entries of the report in milliseconds, one for each way to run the queries."""
    entries = []
    with broker(directory, shuffle_partitions=options.shuffle_partitions) as settings:
        for place, (name, queries) in enumerate(_VARIANTS.items()):
            own = settings.model_copy(update={"topic_prefix": f"latency-{place}-"})
            figures = _latencies(own, directory / f"latency-{place}", queries, options)
            print("latency", name, figures, flush=True)
            p99 = figures["publish to answer"]["p99_ms"]
            entries.append(
                {
                    "work": f"publish to balance over HTTP at {options.rate} invoices/s, p99 ms, {name}, "
                    f"{options.shuffle_partitions} shuffle partitions",
                    "ours": p99,
                    "peer": _SPARKS_OWN_P99_MS,
                    "peer_name": _SPARKS_OWN,
                    "ratio": round(p99 / _SPARKS_OWN_P99_MS, 3),
                    "ratio_per_cpu_second": None,
                    "runs": figures,
                    "goal": "≤ 1,000 ms",
                }
            )
    return entries


def _latencies(
    settings: Settings, directory: Path, queries: tuple[str, ...], options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    day = Options(
        int(options.rate * (1 + options.warm_up + options.duration)), customers=options.customers, repeats=0, broken=0
    )
    sent = list(simulated(day, FolderSchemaIds()))
    with ExitStack() as resources:
        stack = resources.enter_context(rig(settings, directory, queries))
        watched = _publish(stack, sent, options, resources)
        answered = {each: each.answered.result() for each in watched}
        appended, balances = _append_times(stack.settings, {each.number for each in watched})
    rows = []
    for each, answer in answered.items():
        append = appended[each.number]
        balance = next(time for sequence, time in balances[each.card] if sequence >= each.sequence)
        rows.append((append - each.published, balance - append, answer - balance, answer - each.published))
    return {part: _spread([row[place] for row in rows]) for place, part in enumerate(PARTS)}


def _publish(stack: Rig, sent: list[Sent], options: argparse.Namespace, resources: ExitStack) -> list[Watched]:
    """Publish at this rate, and poll the balances of sampled invoices from the moment of publication."""
    readings = expect(sent, FACTOR).readings
    topic = stack.settings.name_of(topics.POS_INVOICES)
    producer = connected_producer(stack.settings, "benchmark", [topic])
    watched, next_watch = [], options.warm_up
    limits = httpx.Limits(max_connections=None)
    timeout = LONGEST_TIMEOUT_SECONDS + 5
    client = resources.enter_context(
        httpx.Client(base_url=stack.api.url, timeout=timeout, limits=limits, trust_env=False)
    )
    pool = resources.enter_context(ThreadPoolExecutor(_WATCHERS))
    with Publisher(producer) as publisher:
        first = _first_batch(publisher, topic, sent, readings, client, options)
        started = time.monotonic()
        for number, message in enumerate(sent[first:], first):
            due = (number - first) / options.rate
            while (left := started + due - time.monotonic()) > 0:
                publisher.poll(min(left, 0.05))
            publisher.publish(topic, message.key, message.value)
            if due >= next_watch and number in readings:
                card, sequence = readings[number]
                now = time.time()
                answer = pool.submit(_answered, client, card, sequence)
                watched.append(Watched(str((message.invoice or {})["InvoiceNumber"]), card, sequence, now, answer))
                next_watch += 1 / _WATCHED_A_SECOND
    return watched


def _first_batch(
    publisher: Publisher,
    topic: str,
    sent: list[Sent],
    readings: Mapping[int, tuple[str, int]],
    client: httpx.Client,
    options: argparse.Namespace,
) -> int:
    """Publish the invoices of one second, and wait until their balances are served. Returns their number.

    Spark's first micro-batch is slow, and its backlog would dominate the figures.
    """
    count: int = min(options.rate, len(sent))
    for message in sent[:count]:
        publisher.publish(topic, message.key, message.value)
    publisher.poll(1.0)
    for number in range(count):
        if number in readings:
            _answered(client, *readings[number])
    return count


def _answered(client: httpx.Client, card: str, sequence: int) -> float:
    """The time of the first response with this sequence number. Raises HTTPStatusError if there is none in time."""
    parameters = {"minSequence": sequence, "timeout": LONGEST_TIMEOUT_SECONDS}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        answer = client.get(f"/v1/customers/{card}/balance", params=parameters)
        if answer.is_success:
            return time.time()
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
            answer.raise_for_status()


def _append_times(
    settings: Settings, numbers: set[str]
) -> tuple[Mapping[str, float], Mapping[str, list[tuple[int, float]]]]:
    """Append times of these invoices, and of all balances by customer and sequence number, in seconds."""
    ids = FolderSchemaIds()
    invoice_of, balance_of = decoder(topics.POS_INVOICES, ids), decoder(topics.LOYALTY_BALANCES, ids)
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


def _spread(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles(seconds, n=100)
    return {"invoices": len(seconds), "p50_ms": round(cuts[49] * 1000), "p99_ms": round(cuts[98] * 1000)}
