"""For tests of audit and rebuild: what happens to accounts, and a ledger that has all that came of it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from infra.local.ports import free_port
from infra.local.stack import environment_of
from pipelines.queries.loyalty import LOYALTY
from pipelines.runtime.query import Query
from schemas import topics
from services import codecs
from services.domain.events import Command
from services.ledger.database import reading_engine
from services.ledger.tables import EntryRow
from services.messaging.avro import decoder, encoder
from services.settings import Settings
from tests.support.kafka_topics import IDS, publish, read_all
from tests.support.pipeline_process import run_to_the_end

DEADLINE_SECONDS = 240.0


def invoice(number: str, card: str, amount: float, **changes: Any) -> dict[str, Any]:
    return {
        "InvoiceNumber": number,
        "StoreID": "STR1",
        "TotalAmount": amount,
        "CustomerType": "PRIME",
        "CustomerCardNo": card,
        "InvoiceLineItems": [{"ItemCode": "458", "TotalValue": amount}],
        **changes,
    }


def buy(settings: Settings, *invoices: dict[str, Any]) -> None:
    encode = encoder(topics.POS_INVOICES, IDS)
    publish(settings, topics.POS_INVOICES, [(b"STR1", encode(each)) for each in invoices])


def command(settings: Settings, *asked: tuple[str, Command]) -> None:
    """Commands, each with the card it is for."""
    encode = encoder(topics.LOYALTY_COMMANDS, IDS)
    records = ((card.encode(), encode(codecs.command(card, each))) for card, each in asked)
    publish(settings, topics.LOYALTY_COMMANDS, records)


def run(spark: SparkSession, settings: Settings, query: Query = LOYALTY) -> None:
    """Run a query until it has read all there is."""
    run_to_the_end(spark, settings, query)


def served(settings: Settings) -> dict[str, dict[str, Any]]:
    """Card to balance, as the changelog has them: the last record of each card, unless that is a tombstone."""
    decode = decoder(topics.LOYALTY_BALANCES, IDS)
    last = {bytes(each.key() or b"").decode(): each.value() for each in read_all(settings, topics.LOYALTY_BALANCES)}
    return {card: decode(value) for card, value in last.items() if value is not None}


@contextmanager
def ledger_of(settings: Settings, entries: int, log: Path) -> Iterator[None]:
    """A ledger process that has so many entries, and follows."""
    environment = environment_of(settings.model_copy(update={"ledger_metrics_port": free_port()}))
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.ledger"], env=environment, stdout=output, stderr=output
        )
    engine = reading_engine(settings.ledger_url)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while _number(engine) < entries:
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
        yield
    finally:
        engine.dispose()
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def _number(engine: Any) -> int:
    try:
        with engine.connect() as connection:
            return int(connection.scalar(select(func.count()).select_from(EntryRow)))
    except OperationalError:  # not made yet
        return 0
