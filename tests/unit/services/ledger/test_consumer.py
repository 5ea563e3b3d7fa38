"""The ledger process while its database does not answer or refuses a statement: services.ledger.consumer."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pytest

from infra.local.stack import environment_of, private_settings
from schemas.topics import LOYALTY
from services.ledger.appender import Appender
from services.ledger.consumer import LedgerConsumer
from services.ledger.database import writing_engine
from services.ledger.metrics import Metrics
from services.ledger.positions import PositionMovedError
from services.messaging.avro import decoder
from services.settings import Settings
from tests.support.builders import IDS
from tests.support.kafka import NOBODY
from tests.support.ledger import PSEUDONYMS
from tests.support.waiting import DEADLINE_SECONDS, POLL_SECONDS


@contextlib.contextmanager
def running(url: str, metrics: Metrics) -> Iterator[LedgerConsumer]:
    """A consumer in a thread, without a broker."""
    engine = writing_engine(url)
    appender = Appender(engine, PSEUDONYMS, "loyalty")
    consumer = LedgerConsumer(Settings(kafka_bootstrap_servers=NOBODY), appender, decoder(LOYALTY, IDS), metrics)
    thread = Thread(target=consumer.run)
    thread.start()
    try:
        yield consumer
    finally:
        consumer.stop()
        thread.join()
        engine.dispose()


def wait_for_problem(consumer: LedgerConsumer, words: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while words not in str(consumer.problem):
        assert time.monotonic() < deadline, consumer.problem
        time.sleep(POLL_SECONDS)


def test_a_database_that_is_away_at_the_start_is_the_problem() -> None:
    """The operator reads the reason, and the consumer can stop."""
    metrics = Metrics()
    with running("postgresql://loyalty@127.0.0.1:1/loyalty", metrics) as consumer:
        wait_for_problem(consumer, "OperationalError")
        assert 0 == metrics.registry.get_sample_value("loyalty_ledger_ready")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_database_that_does_not_answer_is_a_problem(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction hangs. The reason and the metric say that the ledger is not ready, until the transaction ends."""
    monkeypatch.setattr("services.ledger.consumer._STALLED_SECONDS", 1.0)
    metrics = Metrics()
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(x'10A17'::int)")
        with running(database_url, metrics) as consumer:
            wait_for_problem(consumer, "has not finished a transaction")
            assert 0 == metrics.registry.get_sample_value("loyalty_ledger_ready")
            other.execute("SELECT pg_advisory_unlock(x'10A17'::int)")
            wait_for_problem(consumer, "Kafka")


@pytest.mark.parametrize(
    ("now", "is_normal"),
    [({0: 7}, True), ({0: 5}, True), ({0: 4}, False), ({}, False)],
    ids=["a second ledger", "the same position", "read again", "partition gone"],
)
def test_positions_that_move_back_are_a_problem(
    monkeypatch: pytest.MonkeyPatch, now: dict[int, int], *, is_normal: bool
) -> None:
    """Ledgers of two Kafka clusters delete the positions of each other again and again, and an operator must see it. A
    second ledger of the same cluster only moves them on.
    """
    appender: Any = MagicMock()
    consumer = LedgerConsumer(Settings(), appender, decoder(LOYALTY, IDS), Metrics())
    consumer._positions = {0: 5}
    monkeypatch.setattr("services.ledger.consumer._POLL_SECONDS", 0)
    monkeypatch.setattr(consumer, "_append_or_check", MagicMock(side_effect=PositionMovedError))
    monkeypatch.setattr(consumer, "_connect", lambda: setattr(consumer, "_positions", now))
    monkeypatch.setattr(consumer, "_reader", MagicMock(end_offset=lambda *_: 9))
    with contextlib.nullcontext() if is_normal else pytest.raises(PositionMovedError):
        consumer._poll_once()


@pytest.mark.program
def test_a_statement_that_the_database_refuses_is_one_line(tmp_path: Path) -> None:
    """The last line has the reason. The status permits a restart, because an operator can repair the database."""
    file = tmp_path / "ledger.sqlite"
    file.write_text("This is no database, but it is long enough for the header of one. " * 10)
    settings = private_settings(tmp_path, ledger_url=f"sqlite:///{file}", kafka_bootstrap_servers=NOBODY)
    command = [sys.executable, "-m", "services.ledger"]
    done = subprocess.run(
        command, env=environment_of(settings), capture_output=True, text=True, check=False, timeout=60
    )
    last = done.stderr.splitlines()[-1]
    assert 1 == done.returncode
    assert last.startswith("error: the database refuses a statement: file is not a database; remove the cause")
    assert "Traceback" not in done.stderr
