"""`loyalty sql` with a real broker: bounded reads, and records that arrive."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from infra.local.stack import environment_of
from schemas.topics import HADOOP, LOYALTY_BALANCES, POS_INVOICES
from services.messaging.avro import encoder
from services.settings import Settings
from tests.support.builders import IDS, balance
from tests.support.kafka import publish

# A shell starts background jobs with SIGINT ignored, and the tests may be such a job.
_PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from services.cli import app; app()"
)

pytestmark = pytest.mark.usefixtures("topics_created")


def line(number: int, city: str, value: float) -> tuple[bytes, bytes]:
    record = {"InvoiceNumber": str(number), "City": city, "TotalValue": value, "StoreID": "S1"}
    return b"S1", encoder(HADOOP, IDS)(record)


def start(settings: Settings, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PROGRAM, "sql", *arguments]
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


def test_topics_as_they_are_now(settings: Settings) -> None:
    """Each statement reads up to the end of the topic, and an empty topic is an empty table."""
    publish(settings, HADOOP, [line(1, "Pune", 2.5), line(2, "Pune", 4.0), line(3, "Kochi", 1.0), (b"S1", b"junk")])
    found = answer(settings, "SELECT City, sum(TotalValue) AS Sum FROM hadoop GROUP BY 1 ORDER BY 1")
    assert [{"City": "Kochi", "Sum": 1.0}, {"City": "Pune", "Sum": 6.5}] == found["rows"]
    assert [1] == list(found["skipped"]["hadoop"].values())
    topic, key, record = balance("A", "1.25")
    publish(settings, topic, [(key.encode(), encoder(LOYALTY_BALANCES, IDS)(record)), (b"B", None)])
    both = "SELECT (SELECT count(*) FROM hadoop) AS Lines, (SELECT sum(TotalLoyaltyPoints) FROM loyalty_balances) AS P"
    assert [{"Lines": 3, "P": "1.25"}] == answer(settings, both)["rows"]
    assert [] == answer(settings, f"FROM {POS_INVOICES.name.replace('-', '_')}")["rows"]


def test_records_that_match_are_printed_as_they_arrive(settings: Settings, follower: subprocess.Popen[str]) -> None:
    """Records that do not match are not printed, and the command goes on until it is interrupted."""
    assert follower.stdout
    assert follower.stderr
    assert "following" in follower.stderr.readline()
    for value in (7.5, 4.0, 9.0):
        publish(settings, HADOOP, [line(1, "Pune", value)])
    found = [json.loads(follower.stdout.readline()) for _ in range(2)]
    assert [{"City": "Pune", "TotalValue": 7.5}, {"City": "Pune", "TotalValue": 9.0}] == found
    follower.send_signal(2)
    assert 0 == follower.wait(60)
