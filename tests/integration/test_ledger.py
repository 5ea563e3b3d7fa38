"""The ledger process with a real broker loses and duplicates nothing, at whatever moment it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psycopg
import pytest
from confluent_kafka.cimpl import NewPartitions
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from infra.local.ports import free_port
from infra.local.stack import environment_of
from schemas.topics import LOYALTY
from services.cli import app
from services.domain.entries import Entry, Kind
from services.ledger.appender import Appender
from services.ledger.consumer import LedgerConsumer
from services.ledger.database import writing_engine
from services.ledger.metrics import Metrics
from services.messaging import clients
from services.messaging.avro import decoder, encoder
from services.pseudonyms import pseudonyms
from services.settings import Settings
from tests.support.builders import IDS, entry, notification
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS, publish
from tests.support.ledger import bytes_of, entries_in
from tests.support.waiting import DEADLINE_SECONDS, POLL_SECONDS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.usefixtures("topics_created")


class LedgerProcess:
    """``python -m services.ledger``, which writes its log to a file."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self._log = log
        port = free_port()
        environment = environment_of(settings.model_copy(update={"ledger_metrics_port": port}))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.ledger"], cwd=ROOT, env=environment, stdout=output, stderr=output
            )
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> httpx.Response | None:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self._url}{path}", timeout=5, trust_env=False)
        return None

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_so():
            assert self._process.poll() is None, f"the ledger ended by itself:\n{self.log}"
            assert time.monotonic() < deadline, f"not in time:\n{self.log}"
            time.sleep(POLL_SECONDS)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def is_ready(self) -> bool:
        answer = self.get("/readyz")
        return answer is not None and answer.status_code == 200

    def metric(self, line: str) -> float:
        answer = self.get("/metrics")
        lines = answer.text.splitlines() if answer else []
        return sum(float(each.rpartition(" ")[2]) for each in lines if each.startswith(line))

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)

    def terminate(self) -> int:
        self._process.terminate()
        return self._process.wait(DEADLINE_SECONDS)

    def wait(self) -> int:
        return self._process.wait(DEADLINE_SECONDS)


@pytest.fixture
def start(settings: Settings, database_url: str, tmp_path: Path) -> Iterator[Callable[..., LedgerProcess]]:
    """Starts ledger processes on the database of the test, and kills them after it."""
    started: list[LedgerProcess] = []

    def start(**changes: object) -> LedgerProcess:
        own = settings.model_copy(update={"ledger_url": database_url, **changes})
        started.append(LedgerProcess(own, tmp_path / f"ledger-{len(started)}.log"))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def send(settings: Settings, *entries: tuple[str, Entry]) -> None:
    encode = encoder(LOYALTY, IDS)
    publish(settings, LOYALTY, ((card.encode(), encode(notification(card, each))) for card, each in entries))


def stored(url: str) -> list[tuple[str | None, int, int]]:
    """Card, sequence number and points of every entry. Empty before the ledger exists."""
    try:
        return sorted(((card, entry.sequence, entry.points) for card, _, entry in entries_in(url)), key=str)
    except (RuntimeError, DBAPIError):
        return []


def expected(entries: list[tuple[str, Entry]]) -> list[tuple[str | None, int, int]]:
    return sorted({(card, each.sequence, each.points) for card, each in entries}, key=str)


def day(customers: int, each: int) -> list[tuple[str, Entry]]:
    return [(f"CARD{card}", entry(number, card + number)) for number in range(1, each + 1) for card in range(customers)]


def test_repeated_kills_lose_and_duplicate_nothing(
    settings: Settings, database_url: str, start: Callable[..., LedgerProcess]
) -> None:
    """The process gets SIGKILL six times while 30,000 entries with duplicates arrive. Each entry is stored once,
    without gaps.
    """
    entries = day(300, 100)
    send(settings, *entries, *entries[::7])
    for kills in range(6):
        process = start()
        goal = kills * 4_000
        process.wait_until(lambda process=process, goal=goal: process.metric("loyalty_ledger_position{") > goal)
        process.kill()
    process = start()
    process.wait_until(lambda: process.is_ready() and process.metric("loyalty_ledger_position{") == len(entries) + 4286)
    assert expected(entries) == stored(database_url)
    assert 0 == process.metric("loyalty_ledger_gaps ")
    assert 0 == process.terminate()


def test_two_processes_share_a_ledger(
    settings: Settings, database_url: str, start: Callable[..., LedgerProcess]
) -> None:
    """Two processes append. One is paused and resumes. Every entry is stored once, and both continue.

    A process is not unready because the other one was faster.
    """
    entries = day(60, 100)
    first, second = start(), start()
    for process in (first, second):
        process.wait_until(process.is_ready)
    send(settings, *entries[:2_000])
    first.wait_until(lambda: 2_000 == len(stored(database_url)))
    first.pause()
    send(settings, *entries[2_000:4_000])
    # A process that is paused in a transaction keeps SQLite's lock, so the other waits.
    first.resume()
    send(settings, *entries[4_000:])
    second.wait_until(lambda: len(entries) == len(stored(database_url)))
    assert expected(entries) == stored(database_url)
    assert [0, 0] == [first.terminate(), second.terminate()]
    assert "PositionMovedError" not in first.log + second.log


def test_gaps_duplicates_and_unreadable_records(
    settings: Settings, database_url: str, start: Callable[..., LedgerProcess]
) -> None:
    """The ledger reports a gap until it is filled. It skips an unreadable record and logs the reason.

    Its log also shows that its positions went back.
    """
    process = start()
    process.wait_until(process.is_ready)
    send(settings, ("A", entry(1)), ("A", entry(1)), ("A", entry(4)))
    publish(
        settings,
        LOYALTY,
        [(b"A", b"no Avro"), (b"B", encoder(LOYALTY, IDS)(notification("A", entry(9)))), (b"A", None)],
    )
    send(settings, ("B", entry(1)))
    process.wait_until(
        lambda: 3 == len(stored(database_url)) and 3 == process.metric("loyalty_ledger_undecodable_records_total ")
    )
    assert 1 == process.metric("loyalty_ledger_gaps ")
    assert 1 == process.metric("loyalty_ledger_repeats_total ")
    assert [(2, 3)] == [(gap["first"], gap["last"]) for gap in command(settings, database_url, "gaps")["gaps"]]
    reasons = [each["reason"] for each in command(settings, database_url, "undecodable")["undecodable"]]
    assert [True] * 3 == [
        any(words in reason for reason in reasons) for words in ("no value", "Confluent framing", "key is not")
    ]
    send(settings, ("A", entry(2)), ("A", entry(3)))
    process.wait_until(lambda: 0 == process.metric("loyalty_ledger_gaps "))
    assert [] == command(settings, database_url, "gaps")["gaps"]
    assert 3 == command(settings, database_url, "reread")["partitions"]
    process.wait_until(lambda: 6 <= process.metric("loyalty_ledger_repeats_total "))
    assert "PositionMovedError" in process.log
    assert expected([("A", entry(number)) for number in (1, 2, 3, 4)] + [("B", entry(1))]) == stored(database_url)
    assert 0 == process.terminate()


def test_the_entries_of_an_added_partition_are_read_without_a_restart(
    settings: Settings, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise retention would delete these entries before the ledger knows the partition."""
    monkeypatch.setattr("services.ledger.consumer._PARTITIONS_SECONDS", 0.0)
    engine = writing_engine(database_url)
    appender = Appender(engine, pseudonyms(settings.pseudonym_key_file), settings.name_of(LOYALTY))
    consumer = LedgerConsumer(settings, appender, decoder(LOYALTY, IDS), Metrics())
    thread = Thread(target=consumer.run)
    thread.start()
    try:
        send(settings, ("A", entry(1)))
        wait_for_entries(database_url, ("A", entry(1)))
        client = clients.admin(settings)  # the future fails if the client is garbage-collected first
        (added,) = client.create_partitions([NewPartitions(settings.name_of(LOYALTY), 4)]).values()
        added.result()
        value = encoder(LOYALTY, IDS)(notification("B", entry(1)))
        producer = clients.producer(settings, "test")  # a producer that ran before does not know the new partition
        producer.produce(settings.name_of(LOYALTY), value, b"B", partition=3)
        assert 0 == clients.flush(producer, KAFKA_TIMEOUT_SECONDS)
        wait_for_entries(database_url, ("A", entry(1)), ("B", entry(1)))
    finally:
        consumer.stop()
        thread.join()
        engine.dispose()


def wait_for_entries(url: str, *entries: tuple[str, Entry]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while stored(url) != expected([*entries]):
        assert time.monotonic() < deadline, stored(url)
        time.sleep(POLL_SECONDS)


def command(settings: Settings, url: str, name: str) -> dict[str, Any]:
    """The output of ``loyalty ledger … --json``."""
    own = {"LOYALTY_LEDGER_URL": url, "LOYALTY_TOPIC_PREFIX": settings.topic_prefix}
    done = CliRunner().invoke(app, ["ledger", name, "--json"], env=own)
    assert 0 == done.exit_code, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_waits_for_kafka_and_ends_on_sigterm(start: Callable[..., LedgerProcess]) -> None:
    """Without a broker the process is alive and not ready, reports the reason, and ends on SIGTERM."""
    process = start(kafka_bootstrap_servers=f"127.0.0.1:{free_port()}")
    process.wait_until(lambda: (answer := process.get("/readyz")) is not None and "Kafka" in answer.text)
    answer = process.get("/livez")
    assert answer is not None
    assert 200 == answer.status_code
    assert 0 == process.terminate()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_waits_for_its_database(
    settings: Settings, postgresql: str, database_url: str, start: Callable[..., LedgerProcess]
) -> None:
    """While the database refuses connections, the process waits and reports it. Afterwards it stores all entries."""
    process = start()
    process.wait_until(process.is_ready)
    send(settings, ("A", entry(1)))
    process.wait_until(lambda: 1 == process.metric("loyalty_ledger_entries_total "))
    name = make_url(database_url).database
    with psycopg.connect(postgresql, autocommit=True) as server:
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        send(settings, ("A", entry(2)), ("B", entry(1)))
        process.wait_until(lambda: (answer := process.get("/readyz")) is not None and "OperationalError" in answer.text)
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())
    process.wait_until(lambda: process.is_ready() and 3 == process.metric("loyalty_ledger_entries_total "))
    assert expected([("A", entry(1)), ("A", entry(2)), ("B", entry(1))]) == stored(database_url)
    assert 0 == process.terminate()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_wrong_settings_end_the_process(settings: Settings, start: Callable[..., LedgerProcess]) -> None:
    """The status is 2 for a wrong database URL, the ledger of another topic, and another pseudonym key."""
    assert 2 == start(ledger_url="mysql://host/db").wait()
    process = start()
    process.wait_until(process.is_ready)
    assert 0 == process.terminate()
    assert 2 == start(topic_prefix="").wait()
    settings.pseudonym_key_file.write_bytes(b"x" * 32)
    assert 2 == start().wait()
    settings.pseudonym_key_file.write_bytes(b"short")
    assert 2 == start().wait()


def test_an_erased_customer_is_removed_everywhere(
    settings: Settings, database_url: str, start: Callable[..., LedgerProcess]
) -> None:
    """After an erasure, and after a replay of all earlier records, database and logs contain no card."""
    card, secret = "9265846829", "words of hers"
    life = [
        (card, entry(1)),
        (card, entry(2, kind=Kind.SENT, points=-10, counterparty="OTHER", reason=secret)),
        ("OTHER", entry(1, kind=Kind.RECEIVED, points=10, counterparty=card, reason=secret)),
        (card, entry(3, kind=Kind.ERASED, points=-90)),
    ]
    process = start()
    send(settings, *life)
    process.wait_until(lambda: 1 == process.metric("loyalty_ledger_erased_accounts_total "))
    send(settings, *life)
    process.wait_until(lambda: 4 == process.metric("loyalty_ledger_repeats_total "))
    assert 0 == process.terminate()
    assert expected([(None if of == card else of, each) for of, each in life]) == stored(database_url)  # type: ignore[misc]
    found = entries_in(database_url)
    assert card not in str(found)
    assert secret not in str(found)
    assert pseudonyms(settings.pseudonym_key_file).of(card) in str(found)
    if database_url.startswith("sqlite"):
        assert card.encode() not in bytes_of(database_url)
