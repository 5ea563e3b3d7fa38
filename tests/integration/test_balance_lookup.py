"""The balance lookup of a real API process with a real broker."""

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.messaging.administration import create_topics
from services.messaging.clients import admin
from services.settings import Settings
from tests.support.kafka import BalanceWriter
from tests.support.processes import ApiProcess, balance_partitions
from tests.support.waiting import POLL_SECONDS, wait_for

if TYPE_CHECKING:
    from infra.local.broker import LocalBroker
    from tests.support.containers import KafkaInContainer

CARDS = [f"CARD{number}" for number in range(60)]


@pytest.fixture
def changelog(settings: Settings, topics_created: list[str]) -> BalanceWriter:  # noqa: ARG001  # creates the topics first
    return BalanceWriter(settings)


def write_a_disturbed_day(changelog: BalanceWriter) -> dict[str, str]:
    """Write ascending sequence numbers, duplicates, late records, tombstones and garbage. Returns the right points."""
    chance = random.Random(3)
    truth: dict[str, tuple[int, str]] = {}
    for step in range(2_000):
        card = chance.choice(CARDS)
        sequence, points = truth.get(card, (0, "0.00"))
        match chance.randrange(10):
            case 0:
                changelog.raw(card, chance.choice([b"", b"garbage", b"\x00\x00\x00\x00\x63garbage", b"{}"]))
            case 1 if sequence > 1:
                changelog.balance(card, "99999.99", sequence - 1)  # a late record of a replaced writer
            case 2 if sequence:
                changelog.balance(card, points, sequence)  # a replayed batch
            case 3 if step % 7 == 0:
                changelog.raw(card, None)
                truth.pop(card, None)
            case _:
                truth[card] = (sequence + 1, f"{step}.{step % 100:02}")
                changelog.balance(card, truth[card][1], sequence + 1)
    changelog.flush()
    return {card: points for card, (_, points) in truth.items()}


def test_serves_the_highest_sequence_numbers_only(changelog: BalanceWriter, settings: Settings, tmp_path: Path) -> None:
    """Responses are right for records from before and after the start, and despite records that nobody can decode."""
    before = write_a_disturbed_day(changelog)
    with ApiProcess(settings, tmp_path / "api.log") as api:
        report = api.wait_until_ready()

        assert before == api.points(CARDS)
        assert len(before) == sum(partition["entries"] for partition in balance_partitions(report))
        assert sum(partition["undecodable"] for partition in balance_partitions(report)) > 100
        assert sum(partition["ignored"] for partition in balance_partitions(report)) > 100
        assert [None] * 3 == [partition["resumedFrom"] for partition in balance_partitions(report)]
        assert api.http.get("/livez").status_code == 200
        assert api.http.get("/livez", headers={"Host": "evil.example"}).status_code == 403

        assert_that_freshness_is_of_new_balances(changelog, api)
        assert_that_a_tombstone_removes_a_new_balance(changelog, api)
        assert_that_a_second_process_ends(settings, tmp_path / "second.log")
        assert api.http.get("/readyz").status_code == 200


def assert_that_freshness_is_of_new_balances(changelog: BalanceWriter, api: ApiProcess) -> None:
    """Each balance that is applied after the restore adds one observation of its age. The restore adds none."""
    assert "loyalty_balance_freshness_seconds_count 0.0" in api.http.get("/metrics").text
    changelog.balance("new", "12.34", 1, updated=int(time.time() * 1000) - 2_000)
    changelog.flush()
    assert api.http.get("/v1/customers/new/balance?minSequence=1&timeout=30").json()["TotalLoyaltyPoints"] == "12.34"

    lines = dict(line.rsplit(" ", 1) for line in api.http.get("/metrics").text.splitlines() if line[0] != "#")

    assert lines["loyalty_balance_freshness_seconds_count"] == "1.0"
    assert 2.0 <= float(lines["loyalty_balance_freshness_seconds_sum"]) < 60


def assert_that_a_tombstone_removes_a_new_balance(changelog: BalanceWriter, api: ApiProcess) -> None:
    """The tombstone of a live customer has an effect, too."""
    changelog.raw("new", None)
    changelog.flush()
    wait_for("the deletion", lambda: api.balance("new").status_code == 404)


def assert_that_a_second_process_ends(settings: Settings, log: Path) -> None:
    """A second process on the same state directory ends with status 1 and one clear line."""
    assert ApiProcess(settings, log).wait() == 1
    lines = log.read_text().splitlines()
    assert len(lines) == 1
    assert str(settings.state_dir) in lines[0]


def test_a_recreated_changelog_is_read_from_its_start(
    changelog: BalanceWriter, settings: Settings, tmp_path: Path
) -> None:
    """After a topic was deleted and created again, the instance serves nothing of the old topic."""
    for card in ["old", *CARDS]:
        changelog.balance(card, "1.00", 1)
    changelog.flush()
    with ApiProcess(settings, tmp_path / "api.log") as api:
        api.wait_until_ready()
        assert api.balance("old").status_code == 200
        assert api.terminate() == 0
    recreate_topics(settings)
    fresh = BalanceWriter(settings)
    for number in range(200):
        fresh.balance(f"new{number}", "2.00", 1)
    fresh.flush()

    with ApiProcess(settings, tmp_path / "again.log") as again:
        report = again.wait_until_ready()

        assert again.balance("old").status_code == 404
        assert {"2.00"} == set(again.points([f"new{number}" for number in range(200)]).values())
        rebuilt = [partition for partition in balance_partitions(report) if partition["rebuiltBecause"]]
        assert len(rebuilt) == 3
        assert all("come from" in partition["rebuiltBecause"] for partition in rebuilt)


def test_another_number_of_partitions(settings: Settings, tmp_path: Path) -> None:
    """The stores find every key, also in pages. With another number than the topics have, they are not used."""
    seven = settings.model_copy(update={"partitions": 7})
    create_topics(seven)
    changelog = BalanceWriter(seven)
    for card in CARDS:
        changelog.balance(card, "1.00", 1)
    changelog.flush()
    with ApiProcess(seven, tmp_path / "seven.log") as api:
        ends = [each["endOffset"] for each in balance_partitions(api.wait_until_ready())]
        assert dict.fromkeys(CARDS, "1.00") == api.points(CARDS)
        page = api.http.get("/v1/stores/customer-balances/all?limit=40").json()
        rest = api.http.get(f"/v1/stores/customer-balances/all?limit=40&cursor={page['next']}").json()
        assert sorted(CARDS) == [each["key"] for each in page["entries"] + rest["entries"]]
        assert set(range(7)) == {each["partition"] for each in page["entries"] + rest["entries"]}
        assert 0 == api.terminate()

    with ApiProcess(settings, tmp_path / "three.log") as api:
        wrong = "has 7 partitions, and LOYALTY_PARTITIONS says 3: set the number"
        refused = api.wait_until(lambda report: wrong in str(report["kafkaError"]))
        assert (False, []) == (refused["ready"], refused["partitions"])
        assert 503 == api.balance(CARDS[0]).status_code
        assert 0 == api.terminate()

    with ApiProcess(seven, tmp_path / "again.log") as api:
        assert ends == [each["resumedFrom"] for each in balance_partitions(api.wait_until_ready())]


def recreate_topics(settings: Settings) -> None:
    client = admin(settings)
    names = [name for name in client.list_topics(timeout=30).topics if name.startswith(settings.topic_prefix)]
    for future in client.delete_topics(names).values():
        future.result()
    deadline = time.monotonic() + 60
    while set(names) & set(client.list_topics(timeout=30).topics) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    create_topics(settings)


def test_serves_during_an_outage_of_kafka(own_broker: "LocalBroker | KafkaInContainer", tmp_path: Path) -> None:
    """Without the broker the instance stays ready, serves and reports the outage. Later it follows again."""
    own_broker.start()
    settings = Settings(kafka_bootstrap_servers=own_broker.bootstrap_servers, state_dir=tmp_path / "state")
    create_topics(settings)
    changelog = BalanceWriter(settings)
    changelog.balance("A", "1.00", 1)
    changelog.flush()
    with ApiProcess(settings, tmp_path / "api.log") as api:
        api.wait_until_ready()
        own_broker.stop()
        api.wait_until(lambda report: report["ready"] and report["kafkaError"] is not None)
        assert api.points(["A"]) == {"A": "1.00"}
        assert api.http.get("/livez").status_code == 200

        own_broker.start()
        api.wait_until(lambda report: report["ready"] and report["kafkaError"] is None)
        changelog = BalanceWriter(settings)
        changelog.balance("A", "2.00", 2)
        changelog.flush()
        answer = api.http.get("/v1/customers/A/balance?minSequence=2&timeout=30")
        assert answer.json()["TotalLoyaltyPoints"] == "2.00"


def test_starts_before_kafka(own_broker: "LocalBroker | KafkaInContainer", tmp_path: Path) -> None:
    """Without broker and topics the instance is alive and responds with 503. It becomes ready when they exist."""
    settings = Settings(kafka_bootstrap_servers=own_broker.bootstrap_servers, state_dir=tmp_path / "state")
    with ApiProcess(settings, tmp_path / "api.log") as api:
        api.wait_until(lambda report: not report["ready"] and report["kafkaError"] is not None)
        assert api.http.get("/livez").status_code == 200
        assert api.balance("A").status_code == 503
        own_broker.start()
        create_topics(settings)
        api.wait_until_ready()
        assert api.balance("A").status_code == 404
