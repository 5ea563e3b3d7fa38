"""Measure the POS simulator: ``python -m benchmarks.simulator [--count N]``. The LOYALTY_… settings name the broker.

Prints one JSON object with medians of the rounds: invoices per second of each stage, CPU seconds per 1,000 published
invoices, and the ratio to a program that encodes and publishes the same invoice repeatedly: no simulator with this
library can be faster.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from benchmarks.machine import machine
from schemas import topics
from services.messaging import avro
from services.messaging.administration import create_topics
from services.messaging.publishing import connected_producer, publish, require_broker
from services.messaging.schema_ids import FolderSchemaIds
from services.pos_simulator.chain import Chain
from services.pos_simulator.invoicing import Invoicing
from services.pos_simulator.simulation import Kind, Message, Options, Simulation
from services.settings import Settings

PREFIX = "benchmark-simulator-"


def invoicing(options: Options) -> Invoicing:
    chain = Chain(options.stores)
    return Invoicing(options.seed, chain, options.customers, options.prime, options.home_delivery, options.day)


def generate(options: Options) -> None:
    write = invoicing(options)
    for number in range(options.count):
        write.next_invoice(number / options.count)


def generate_and_encode(options: Options) -> None:
    for _ in Simulation(options).messages():
        pass


def constant(options: Options) -> Iterator[Message]:
    """The first invoice of the day, many times. The library encodes it each time."""
    encode = avro.encoder(topics.POS_INVOICES, FolderSchemaIds())
    first = next(Simulation(options).messages())
    assert first.invoice is not None  # noqa: S101 - narrows the type, because duplicates and broken invoices are off
    for _ in range(options.count):
        yield Message(first.key, encode(first.invoice), Kind.INVOICE, first.invoice)


def measured(rounds: int, count: int, run: Callable[[], Any]) -> tuple[float, float]:
    """Invoices per second, and CPU seconds per 1,000 invoices: medians of the rounds."""
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return count / median(walls), 1_000 * median(cpus) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="number of invoices in each round")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds of each stage")
    arguments = parser.parse_args()
    settings = Settings(topic_prefix=PREFIX)
    require_broker(settings)
    create_topics(settings)
    topic = settings.name_of(topics.POS_INVOICES)
    options = Options(count=arguments.count)
    without_errors = Options(count=arguments.count, repeats=0, broken=0)

    def to_broker(messages: Iterator[Message]) -> None:
        publish(
            ((each.key, each.value) for each in messages),
            connected_producer(settings, "loyalty-benchmark", [topic]),
            topic,
        )

    def measure(run: Callable[[], Any]) -> tuple[float, float]:
        return measured(arguments.rounds, arguments.count, run)

    generated, _ = measure(lambda: generate(options))
    encoded, _ = measure(lambda: generate_and_encode(options))
    published, cpu_seconds = measure(lambda: to_broker(Simulation(options).messages()))
    constant_published, _ = measure(lambda: to_broker(constant(without_errors)))
    figures = {
        "generate_per_second": round(generated),
        "generate_and_encode_per_second": round(encoded),
        "to_broker_per_second": round(published),
        "to_broker_cpu_seconds_per_1000": round(cpu_seconds, 4),
        "constant_invoice_to_broker_per_second": round(constant_published),
        "ratio_to_constant_invoice": round(published / constant_published, 2),
        "count": arguments.count,
        "rounds": arguments.rounds,
        "machine": machine(),
    }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
