"""Gigabytes of invoices that wait when the pipeline starts."""

from collections import Counter
from functools import partial

import duckdb
import orjson
import psutil

from schemas import topics
from services.domain.invoice import HOME_DELIVERY
from services.messaging import clients
from services.messaging.avro import decoder
from services.messaging.publishing import Publisher
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.simulation import Options, Simulation
from services.settings import Settings
from tests.faults.environment import PROBE, Environment
from tests.faults.report import Row
from tests.faults.scenario import Scenario
from tests.support.kafka import headers_of, read_each
from tests.support.programs import loyalty

BACKLOG_BYTES = 2_000_000_000

_ENDLESS = 100_000_000
_TIMEOUT_SECONDS = 2 * 3600.0
"""The longest time to process the whole backlog, and to audit it."""


def backlog(name: str, environment: Environment, seed: int) -> Row:
    """Publish two gigabytes while the pipeline is stopped, start it, and kill it while it reads them.

    The queries have their default limits and heaps. This fault counts the lines of each invoice, and ``loyalty audit``
    computes the accounts.
    """
    settings, pipeline = environment.settings, environment.stack.pipeline
    environment.halt(pipeline)
    lines, deliveries = publish(settings, seed, BACKLOG_BYTES)
    environment.resume(pipeline)
    environment.until_written(topics.LOYALTY, len(lines) // 10)
    environment.restart(pipeline)
    recovery = environment.recovered()
    environment.settle()
    memory = _largest_process(pipeline.process.pid)
    found, shipped, again = _outputs(settings)
    exported, distinct = _exported(settings)
    audited = loyalty(settings, "audit", timeout=_TIMEOUT_SECONDS).returncode
    rows = lines.total()
    evidence = (
        f"{len(lines):,} invoices; {exported:,} rows exported, {distinct:,} distinct, {rows:,} expected; exit status "
        f"of audit: {audited}; largest process of the pipeline: {memory / 2**20:,.0f} MiB"
    )
    return Row(
        fault=name,
        injected=1,
        lost=(lines - found).total() + max(0, deliveries - shipped) + max(0, rows - distinct),
        doubled=(found - lines).total() + max(0, shipped - deliveries) + exported - distinct,
        wrong_answers=int(bool(audited)),
        again=again,
        recovery_seconds=round(recovery, 1),
        evidence=evidence,
    )


def publish(settings: Settings, seed: int, size: int) -> tuple[Counter[str], int]:
    """Publish invoices as JSON until their values have this number of bytes.

    Returns the number of line items of each invoice, and the number of invoices to deliver. Duplicates do not count.
    """
    options = Options(_ENDLESS, seed, customers=50_000, broken=0)
    topic, lines, deliveries = settings.name_of(topics.POS_INVOICES), Counter[str](), 0
    with Publisher(clients.producer(settings, "faults-backlog")) as publisher:
        for message in Simulation(options).messages():
            invoice = message.invoice
            assert invoice is not None
            value = orjson.dumps(invoice)
            publisher.publish(topic, message.key, value)
            number = str(invoice["InvoiceNumber"])
            deliveries += invoice["DeliveryType"] == HOME_DELIVERY and number not in lines
            lines[number] = len(invoice["InvoiceLineItems"] or ())
            size -= len(value)
            if size < 0:
                break
    return lines, deliveries


def _outputs(settings: Settings) -> tuple[Counter[str], int, int]:
    """The number of hadoop records of each invoice, of shipments, and of duplicates by id in both topics.

    Leaves out the invoice that proves the recovery.
    """
    decode, seen, again = decoder(topics.HADOOP, schema_ids(settings)), set[bytes](), 0
    lines, shipped = Counter[str](), 0
    for topic in (topics.HADOOP, topics.SHIPMENT):
        for message in read_each(settings, settings.name_of(topic)):
            identity = topic.name.encode() + headers_of(message)["ce_id"]
            if identity in seen:
                again += 1
                continue
            seen.add(identity)
            if topic is topics.SHIPMENT:
                shipped += 1
            elif not (number := decode(message.value() or b"")["InvoiceNumber"]).startswith(PROBE):
                lines[number] += 1
    return lines, shipped, again


def _exported(settings: Settings) -> tuple[int, int]:
    """The number of exported rows, and of distinct rows."""
    query = "SELECT count(*), count(DISTINCT LineID) FROM read_parquet(?) WHERE NOT starts_with(InvoiceNumber, ?)"
    found = duckdb.execute(query, [f"{settings.export_dir}/**/*.parquet", PROBE]).fetchall()
    return int(found[0][0]), int(found[0][1])


def _largest_process(pid: int | None) -> int:
    """The largest resident memory among the child processes of a service, in bytes. It is that of the JVM."""
    return max((each.memory_info().rss for each in psutil.Process(pid).children(recursive=True)), default=0)


_STACK = partial(
    Environment,
    api_instances=1,
    timeout_seconds=_TIMEOUT_SECONDS,
    max_offsets_per_trigger=Settings.model_fields["max_offsets_per_trigger"].default,
    spark_java_options="",
)

SCENARIOS: dict[str, Scenario[Environment]] = {
    # Only one injection, because the fault counts all outputs.
    "2 GB of backlog when the pipeline starts": Scenario(backlog, _STACK, most=1)
}
