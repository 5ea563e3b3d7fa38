"""Several instances on a real broker: each answers for every customer while instances join, leave or die."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from http.client import HTTPResponse
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from schemas.topics import LOYALTY_BALANCES
from services.messaging.clients import admin
from services.settings import Settings
from tests.support.events import Subscriber
from tests.support.kafka import BalanceWriter, read_all
from tests.support.processes import ApiProcess, balance_partitions
from tests.support.read_load import Load, Writer, points_at
from tests.support.waiting import DEADLINE_SECONDS, POLL_SECONDS, REPORT_POLL_SECONDS, wait_for

CARDS = [f"CARD{number}" for number in range(45)]
METADATA = "/v1/stores/customer-balances/metadata"

LONGEST_OUTAGE = 30.0
"""Seconds without an answer that a test accepts, because it runs beside others. `make faults` measures outages."""


@pytest.fixture
def writer(settings: Settings, topics_created: list[str]) -> Writer:  # noqa: ARG001  # creates the topics first
    return Writer(BalanceWriter(settings), CARDS)


@pytest.fixture
def start(settings: Settings, tmp_path: Path) -> Iterator[Callable[[str], ApiProcess]]:
    """Starts an instance with a state directory of this name."""
    with ExitStack() as stack:

        def start_one(name: str) -> ApiProcess:
            own = settings.model_copy(update={"state_dir": tmp_path / name, "standby_replicas": 1})
            return stack.enter_context(ApiProcess(own, tmp_path / f"{name}.log"))

        yield start_one


def metadata(instance: ApiProcess, card: str) -> dict[str, Any]:
    return dict(instance.http.get(f"{METADATA}/{card}").json())


def shares(instance: ApiProcess, role: str = "active") -> dict[str, list[int]]:
    """URL to partitions, as one instance reports them."""
    found = instance.http.get(METADATA).json()["instances"]
    return {each["url"]: each[role] for each in found}


def wait_until_shared(instances: list[ApiProcess], poll: float = REPORT_POLL_SECONDS) -> None:
    """Wait until each instance owns and serves a partition, and each partition has an owner and one standby."""
    for each in instances:
        each.wait_until_ready()
    of_all = f"{len(instances)} that share all"
    wait_for(of_all, lambda: all(is_shared(each, instances) for each in instances), poll=poll)


def is_shared(asked: ApiProcess, instances: list[ApiProcess]) -> bool:
    """Whether this instance knows the share of each instance, and serves its own share."""
    found = asked.http.get(METADATA).json()["instances"]
    active, standby = ({each["url"]: each[role] for each in found} for role in ("active", "standby"))
    return (
        {each.url for each in instances} == active.keys()
        and all(active.values())
        and all(sorted(chain(*role.values())) == [0, 1, 2] for role in (active, standby))
        and asked.owned("customer-balances") == sorted(active[asked.url])
    )


@pytest.mark.usefixtures("topics_created")
def test_an_instance_that_the_group_refuses_says_why(settings: Settings, tmp_path: Path) -> None:
    """Its stores are restored, but it never joins the group. So the advice to wait would be wrong."""
    too_short = settings.model_copy(update={"state_dir": tmp_path, "session_timeout": timedelta(seconds=1)})
    with ApiProcess(too_short, tmp_path / "refused.log") as instance:
        report = instance.wait_until(lambda report: report["kafkaError"] is not None)
    assert (False, "JoinGroup failed: Broker: Invalid session timeout") == (report["ready"], report["kafkaError"])


def assert_that_each_answers_for_every_customer(instances: list[ApiProcess], writer: Writer) -> None:
    """Each of three instances owns one partition. It answers for all customers, locally or with one forward."""
    for instance in instances:
        served_by = set()
        for card in CARDS:
            answer = instance.balance(card)
            assert (200, points_at(1)) == (answer.status_code, answer.json()["TotalLoyaltyPoints"])
            assert ("active", "false") == (answer.headers["loyalty-role"], answer.headers["loyalty-stale"])
            assert answer.headers["loyalty-served-by"] == metadata(instance, card)["active"]
            served_by.add(answer.headers["loyalty-served-by"])
        assert {each.url for each in instances} == served_by
        assert 404 == instance.balance("nobody").status_code
        assert [instance.url] == [
            each["url"] for each in instance.http.get("/v1/instances").json()["instances"] if each["self"]
        ]

    asked, card = far_from(instances, CARDS)
    unchanged = asked.http.get(f"/v1/customers/{card}/balance", headers={"If-None-Match": '"1"'})
    assert (304, b"") == (unchanged.status_code, unchanged.content)
    late = threading.Timer(0.5, writer.lap)
    late.start()
    answer = asked.http.get(f"/v1/customers/{card}/balance?minSequence=2&timeout=20&maxLag=0")
    late.join()
    assert (200, 2) == (answer.status_code, answer.json()["Sequence"])


def far_from(instances: list[ApiProcess], cards: list[str]) -> tuple[ApiProcess, str]:
    """An instance and a customer in a partition that the instance does not hold, or at least does not own."""
    found = [(each, card, metadata(each, card)) for each in instances for card in cards]
    found.sort(key=lambda it: (it[0].url == it[2]["active"]) * 2 + (it[0].url in it[2]["standbys"]))
    return found[0][0], found[0][1]


def test_reads_continue_when_owners_die_and_instances_join(
    start: Callable[[str], ApiProcess], writer: Writer, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Three instances answer like one. Then an owner is killed under load and an instance joins.

    Every response is right, and reads continue.
    """
    instances = [start(name) for name in "abc"]
    wait_until_shared(instances)
    assert_that_each_answers_for_every_customer(instances, writer)
    victim, *survivors = instances
    (number,) = shares(victim)[victim.url]
    heir = next(each for each in survivors if number in shares(each, "standby")[each.url])
    asked = [each.url for each in survivors]
    with Load(writer, lambda: list(asked)) as load:
        wait_for("some answers", lambda: load.findings.answers > 100)
        assert not load.findings.failed, load.findings.reasons
        followed = next(card for card in CARDS if metadata(heir, card)["partition"] == number)
        with Subscriber([heir.url, *asked], followed) as subscriber:
            wait_for("events of the victim", lambda: len(subscriber.sequences) > 10)
            killed = time.monotonic()
            victim.kill()
            wait_until_shared(survivors, POLL_SECONDS)
            received = len(subscriber.sequences)
            wait_for("events of the heir", lambda: len(subscriber.sequences) > received + 10)
        assert subscriber.connections > 1
        first, last = subscriber.sequences[0], subscriber.sequences[-1]
        # The changelog has each sequence number of this writer once.
        assert list(range(first, last + 1)) == subscriber.sequences
        record_testsuite_property("takeover_seconds", time.monotonic() - killed)
        after_kill = load.findings.longest_failure
        assert number in shares(heir)[heir.url]
        # The standby was restored once. The takeover reads no record again.
        assert len(heir.log_lines("store restored", "store=customer-balances", f"partition={number}")) == 1

        newcomer = start("d")
        wait_until_shared([*survivors, newcomer])
        asked.append(newcomer.url)
        answers = load.findings.answers
        wait_for("some answers more", lambda: load.findings.answers > answers + 100)

    findings = load.findings
    for name in ("answers", "stale", "failed", "longest_failure", "most_stale"):
        record_testsuite_property(name, getattr(findings, name))
    assert [] == findings.wrong
    assert after_kill < LONGEST_OUTAGE, findings.reasons
    assert findings.longest_failure < LONGEST_OUTAGE, findings.reasons
    assert findings.stale > 0
    for card, sequence in writer.written.items():
        newest = newcomer.http.get(f"/v1/customers/{card}/balance?minSequence={sequence}&timeout=20").json()
        assert (sequence, points_at(sequence)) == (newest["Sequence"], newest["TotalLoyaltyPoints"])


def test_an_instance_that_pauses_or_stops_does_not_answer_as_the_owner(
    start: Callable[[str], ApiProcess], writer: Writer, tmp_path: Path
) -> None:
    """An instance that is paused beyond its session never marks an old balance as current.

    After it is resumed, the other instance stops.
    """
    zombie, other = instances = [start(name) for name in "ab"]
    wait_until_shared(instances)
    cards = [card for card in CARDS if metadata(other, card)["active"] == zombie.url]
    zombie.pause()
    try:
        started = time.monotonic()
        answer = other.balance(cards[0])
        assert (200, "standby") == (answer.status_code, answer.headers["loyalty-role"])
        assert answer.headers["loyalty-stale"] == "true"
        assert time.monotonic() - started < 5
        wait_for("the other owns all", lambda: [0, 1, 2] == shares(other).get(other.url))
        writer.lap()
        fresh = other.http.get(f"/v1/customers/{cards[0]}/balance?minSequence=2&timeout=20&maxLag=0")
        assert (200, 2, "active") == (fresh.status_code, fresh.json()["Sequence"], fresh.headers["loyalty-role"])
        waiting = [Waiting(f"{zombie.url}/v1/customers/{card}/balance") for card in cards]
    finally:
        zombie.resume()
    answers = [each.answer() for each in waiting]
    for answer in answers:
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 200 and answer.headers["loyalty-stale"] == "false":
            assert answer.json()["Sequence"] == 2
    wait_until_shared(instances)
    assert 2 == zombie.http.get(f"/v1/customers/{cards[0]}/balance?minSequence=2&timeout=20").json()["Sequence"]
    assert_that_a_stopping_instance_leaves_first(other, zombie, tmp_path / "b.log")


def assert_that_a_stopping_instance_leaves_first(stopping: ApiProcess, other: ApiProcess, log: Path) -> None:
    """A waiting read gets a problem within the time for running requests. The other instance takes over."""
    card = next(card for card in CARDS if metadata(other, card)["active"] == stopping.url)
    before = log.read_text()
    host, _, port = stopping.url.removeprefix("http://").partition(":")
    head = f"HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
    request = f"GET /v1/customers/{card}/balance?minSequence=999&timeout=30 {head}"
    with socket.create_connection((host, int(port)), DEADLINE_SECONDS) as connection:
        connection.sendall(request.encode())
        for _ in range(3):  # afterwards the instance has read the request, too
            assert 200 == stopping.http.get("/livez").status_code
        stopping.terminate()
        with HTTPResponse(connection) as answer:
            answer.begin()
    assert (503, "application/problem+json") == (answer.status, answer.headers["content-type"])
    wait_for("the other owner", lambda: metadata(other, card)["active"] == other.url)
    assert (200, points_at(2)) == (other.balance(card).status_code, other.balance(card).json()["TotalLoyaltyPoints"])
    complete = log.read_text()
    assert "Traceback" not in complete
    of_the_stop = complete.removeprefix(before)
    # uvicorn writes this line when the running requests have ended.
    assert of_the_stop.index("partitions revoked") < of_the_stop.index("Waiting for application shutdown")


class Waiting:
    """A request that waits in the socket of a paused server."""

    def __init__(self, url: str) -> None:
        self._answers: list[httpx.Response] = []
        self._thread = threading.Thread(target=self._ask, args=(url,))
        self._thread.start()

    def _ask(self, url: str) -> None:
        self._answers.append(httpx.get(url, timeout=DEADLINE_SECONDS, trust_env=False))

    def answer(self) -> httpx.Response:
        self._thread.join(DEADLINE_SECONDS)
        return self._answers[0]


def test_an_erased_customer_stays_erased(
    start: Callable[[str], ApiProcess], writer: Writer, settings: Settings
) -> None:
    """A returning instance does not serve a customer whose tombstone was compacted away while it was down."""
    first = start("a")
    first.wait_until_ready()
    assert 200 == first.balance(CARDS[0]).status_code
    assert 0 == first.terminate()
    stopped = time.monotonic()
    configure(settings, {"delete.retention.ms": "1", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"})
    changelog = BalanceWriter(settings)
    changelog.raw(CARDS[0], None)
    changelog.flush()

    def is_forgotten() -> bool:
        writer.written.pop(CARDS[0], None)
        writer.lap()  # Kafka never compacts the newest segment
        return all(message.key() != CARDS[0].encode() for message in read_all(settings, LOYALTY_BALANCES))

    wait_for("compaction", is_forgotten)
    configure(settings, {"delete.retention.ms": str(int((time.monotonic() - stopped) * 1000))})

    second = start("a")
    report = second.wait_until_ready()

    assert 404 == second.balance(CARDS[0]).status_code
    assert 200 == second.balance(CARDS[1]).status_code
    assert all("drops deletions" in each["rebuiltBecause"] for each in balance_partitions(report))


def configure(settings: Settings, values: dict[str, str]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()]
    resource = ConfigResource(
        ConfigResource.Type.TOPIC, settings.name_of(LOYALTY_BALANCES), incremental_configs=entries
    )
    client = admin(settings)
    for future in client.incremental_alter_configs([resource]).values():
        future.result()
