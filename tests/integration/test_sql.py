"""`loyalty sql` with a real broker: bounded reads, and records that arrive."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import pytest
from pyarrow import parquet

from infra.local.stack import environment_of
from schemas.topics import DEAD_LETTERS, HADOOP, LOYALTY_BALANCES, POS_INVOICES
from services.messaging.avro import encoder
from services.messaging.headers import (
    DEAD_LETTER_OFFSET,
    DEAD_LETTER_PARTITION,
    DEAD_LETTER_REASON,
    DEAD_LETTER_TOPIC,
)
from services.settings import Settings
from services.sql.database import Database
from services.sql.questions import BY_NAME
from services.sql.written import write
from tests.support.builders import IDS, MINUTE, NOON, balance, sales
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS, producer_of, publish

pytestmark = pytest.mark.usefixtures("topics_created")


def line(number: int, city: str, value: float) -> tuple[bytes, bytes]:
    record = {"InvoiceNumber": str(number), "City": city, "TotalValue": value, "StoreID": "S1"}
    return b"S1", encoder(HADOOP, IDS)(record)


def start(settings: Settings, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from services.cli import app; app()", "sql", *arguments]
    environment = environment_of(settings) | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def follower(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    process = start(settings, "--follow", "SELECT City, TotalValue FROM hadoop WHERE TotalValue > 5")
    yield process
    process.kill()
    process.communicate()


def answer(settings: Settings, statement: str) -> Any:
    process = start(settings, "--json", statement)
    output, errors = process.communicate(timeout=60)
    assert 0 == process.returncode, errors
    return json.loads(output)


def test_each_statement_reads_up_to_the_end_of_a_topic(settings: Settings) -> None:
    """An empty topic is an empty table."""
    publish(settings, HADOOP, [line(1, "Pune", 2.5), line(2, "Pune", 4.0), line(3, "Kochi", 1.0), (b"S1", b"junk")])
    found = answer(settings, "SELECT City, sum(TotalValue) AS Sum FROM hadoop GROUP BY 1 ORDER BY 1")
    assert [{"City": "Kochi", "Sum": 1.0}, {"City": "Pune", "Sum": 6.5}] == found["rows"]
    assert [1] == list(found["skipped"]["hadoop"].values())
    topic, key, record = balance("A", "1.25")
    publish(settings, topic, [(key.encode(), encoder(LOYALTY_BALANCES, IDS)(record)), (b"B", None)])
    both = "SELECT (SELECT count(*) FROM hadoop) AS Lines, (SELECT sum(TotalLoyaltyPoints) FROM loyalty_balances) AS P"
    assert [{"Lines": 3, "P": "1.25"}] == answer(settings, both)["rows"]
    assert [] == answer(settings, f"FROM {POS_INVOICES.name.replace('-', '_')}")["rows"]


def test_tables_of_topics_become_files(settings: Settings) -> None:
    """The rows are those of the topics, which may forget their records afterwards."""
    topic, key, record = sales("S1", NOON // MINUTE * MINUTE, "10.00", "2.50")
    publish(settings, topic, [(key.encode(), encoder(topic, IDS)(record))])
    client = producer_of(settings)
    for number in range(3):
        letter = {
            DEAD_LETTER_TOPIC: "t",
            DEAD_LETTER_PARTITION: "0",
            DEAD_LETTER_OFFSET: str(number),
            DEAD_LETTER_REASON: f"reason {number % 2}",
        }
        client.produce(settings.name_of(DEAD_LETTERS), value=b"junk", headers=letter)
    assert 0 == client.flush(KAFKA_TIMEOUT_SECONDS)
    with closing(Database(settings)) as database:
        assert (1, True) == write("sales_by_minute", database, settings)[2:]
        assert (2, True) == write("dead_letters_by_reason", database, settings)[2:]
        assert (2, False) == write("dead_letters_by_reason", database, settings)[2:]
        answer = database.run(BY_NAME["dead-letters"].sql).to_pylist()
    assert {("reason 0", 2), ("reason 1", 1)} == {(row["Reason"], row["Records"]) for row in answer}
    sold = parquet.ParquetDataset(f"{settings.tables_dir}/sales_by_minute").read().to_pylist()
    assert [("S1", 2, Decimal("12.50"))] == [(row["StoreID"], row["Invoices"], row["Net"]) for row in sold]


def test_records_that_match_are_printed_as_they_arrive(settings: Settings, follower: subprocess.Popen[str]) -> None:
    """The command prints no other records, and continues until it is interrupted."""
    assert follower.stdout
    assert follower.stderr
    assert "following" in follower.stderr.readline()
    for value in (7.5, 4.0, 9.0):
        publish(settings, HADOOP, [line(1, "Pune", value)])
    found = [json.loads(follower.stdout.readline()) for _ in range(2)]
    assert [{"City": "Pune", "TotalValue": 7.5}, {"City": "Pune", "TotalValue": 9.0}] == found
    follower.send_signal(2)
    assert 0 == follower.wait(60)
