"""Measure the ledger: entries per second into SQLite and PostgreSQL (``make bench-ledger``).

The benchmark does the work of the ledger process without Kafka: it decodes values and appends them in transactions of
5,000 entries. The two databases alternate. Each round uses a new database. Writes var/reports/ledger.json.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import machine
from benchmarks.reports import medians, publish_report
from schemas.topics import LOYALTY
from services.ledger.appender import Batch
from services.ledger.positions import Span
from services.ledger.queries import EntryFilter, LedgerQueries
from services.ledger.records import entry_of
from services.messaging.avro import decoder, encoder
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings
from tests.support import postgresql
from tests.support.builders import entry, notification
from tests.support.ledger import Ledger

REPORT = Path("var/reports/ledger.json")
BATCH = 5_000
PAGES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000, help="number of entries in each round")
    parser.add_argument("--customers", type=int, default=5_000, help="number of customers")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds with each database")
    options = parser.parse_args()
    records = list(values(options.entries, options.customers))
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        server_url = None
        if folder := postgresql.programs():
            server_url = stack.enter_context(postgresql.server(folder, settings=("shared_buffers=128MB",)))
        for number in range(options.rounds):
            found.setdefault("sqlite", []).append(measured(f"sqlite:///{name}/{number}.sqlite", records))
            if server_url:
                with postgresql.database(server_url) as url:
                    found.setdefault("postgresql", []).append(measured(url, records))
    report = {"machine": machine(), "options": vars(options), "medians": medians(found)}
    publish_report(REPORT, report)


def values(entries: int, customers: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values for the topic loyalty, for all customers in turn."""
    encode = encoder(LOYALTY, FolderSchemaIds())
    for number in range(entries):
        card = f"{9_200_000_000 + number % customers}"
        yield card.encode(), encode(notification(card, entry(number // customers + 1)))


def measured(url: str, records: Sequence[tuple[bytes, bytes]]) -> dict[str, float]:
    ledger = Ledger(url)
    with timed() as first:
        follow(ledger, records)
    with timed() as repeated:
        follow(ledger, records)
    queries, cards = LedgerQueries(Settings(ledger_url=url)), [key.decode() for key, _ in records[:PAGES]]
    with timed() as reading:
        for card in cards:
            queries.page(card, EntryFilter(), 100)
    queries.close()
    ledger.close()
    return {
        "entries_per_second": len(records) / first["seconds"],
        "cpu_microseconds_per_entry": first["cpu"] / len(records) * 1e6,
        "repeats_per_second": len(records) / repeated["seconds"],
        "milliseconds_per_page": reading["seconds"] / PAGES * 1e3,
    }


def follow(ledger: Ledger, records: Sequence[tuple[bytes, bytes]]) -> None:
    decode = decoder(LOYALTY, FolderSchemaIds())
    for start in range(0, len(records), BATCH):
        entries = [entry_of(decode(value), key) for key, value in records[start : start + BATCH]]
        ledger.appender.append(Batch(entries, [], {0: Span(ledger.position, ledger.position + len(entries))}))
        ledger.position += len(entries)


@contextmanager
def timed() -> Iterator[dict[str, Any]]:
    """Measure elapsed time and processor time of this process, in seconds. A database server does not count."""
    found: dict[str, Any] = {}
    started, cpu = time.perf_counter(), sum(psutil.Process().cpu_times()[:2])
    yield found
    found["seconds"] = time.perf_counter() - started
    found["cpu"] = sum(psutil.Process().cpu_times()[:2]) - cpu


if __name__ == "__main__":
    main()
