"""The webhooks process with a real broker and a receiver that can fail."""

import base64
import json
import subprocess
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from standardwebhooks import Webhook

from infra.local.ports import free_port
from schemas import topics
from services.messaging import dead_letters, replaying
from services.messaging.avro import Record, encoder
from services.messaging.clients import admin, consumer
from services.settings import Settings
from tests.support.builders import IDS
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS, publish
from tests.support.webhooks import SECRET, Deployment, Receiver, receiving

OTHER_SECRET = base64.b64encode(b"another one: abcdef0123456789abc").decode()


def notification(number: int, card: str = "CARD4711", kind: str = "earned") -> Record:
    return {
        "InvoiceNumber": f"I{number}",
        "CustomerCardNo": card,
        "TotalAmount": 100.5,
        "EarnedLoyaltyPoints": Decimal("2.01"),
        "TotalLoyaltyPoints": Decimal("2.01") * number,
        "Sequence": number,
        "UpdatedTime": 1_795_000_000_123,
        "Kind": kind,
        "OpenedTime": 1_794_000_000_000,
    }


def notify(settings: Settings, *notifications: Record) -> None:
    encode = encoder(topics.LOYALTY, IDS)
    publish(settings, topics.LOYALTY, [(each["CustomerCardNo"].encode(), encode(each)) for each in notifications])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def deployment(
    settings: Settings,
    topics_created: list[str],  # noqa: ARG001  # creates the topics first
    receiver: Receiver,
    tmp_path: Path,
) -> Iterator[Deployment]:
    found = Deployment(settings, receiver, tmp_path, free_port(), tmp_path / "log")
    yield found
    client: AdminClient = admin(settings)
    groups = [f"{settings.topic_prefix}loyalty-webhooks-{name}" for name in ("crm", "slow", "fast")]
    for future in client.delete_consumer_groups(groups).values():
        future.exception()


def committed(settings: Settings, endpoint: str) -> int:
    """The number of records that the endpoint's group has committed, over all partitions."""
    client = consumer(settings, "test", **{"group.id": f"{settings.topic_prefix}loyalty-webhooks-{endpoint}"})
    try:
        places = [TopicPartition(settings.name_of(topics.LOYALTY), number) for number in range(3)]
        return sum(max(0, place.offset) for place in client.committed(places, timeout=KAFKA_TIMEOUT_SECONDS))
    finally:
        client.close()


def test_a_notification_is_delivered_and_its_signature_verifies(deployment: Deployment, receiver: Receiver) -> None:
    """The receiver's library verifies the request. The body has ISO times and exact points, and the id has no card."""
    deployment.configure("crm")
    with deployment.running():
        notify(deployment.settings, notification(1))
        (request,) = receiver.wait(1)

    body = Webhook(f"whsec_{SECRET}").verify(request.body, request.headers)
    assert "loyalty.earned" == body["type"]
    assert "2026-11-18T11:06:40.123Z" == body["timestamp"] == body["data"]["UpdatedTime"]
    assert ("CARD4711", "2.01", "2.01", 100.5, 1) == tuple(
        body["data"][name]
        for name in ("CustomerCardNo", "EarnedLoyaltyPoints", "TotalLoyaltyPoints", "TotalAmount", "Sequence")
    )
    assert "application/json" == request.headers["content-type"]
    assert "CARD4711" not in "".join(request.headers.values())
    assert "." not in request.identity
    assert not any(secret in deployment.log.read_text(encoding="utf-8") for secret in ("CARD4711", SECRET, "/hook"))


def test_a_failed_delivery_is_retried(deployment: Deployment, receiver: Receiver) -> None:
    """After 500, 429 and 408 the same id and body arrive again with a new signature, until a success.

    The log has only a part of the failed attempts.
    """
    deployment.configure("crm")
    receiver.answers["/hook"] = lambda _, before: (([500, 429, 408][before] if before < 3 else 200), {})
    with deployment.running():
        notify(deployment.settings, notification(1), notification(2, card="CARD4712"))
        requests = receiver.wait(8)
        deployment.await_metric('loyalty_webhook_messages_total{endpoint="crm",outcome="delivered"} 2.0')

    first = [request for request in requests if "I1" == request.invoice]
    assert 4 == len(first)
    assert 1 == len({(request.identity, request.body) for request in first})
    for request in first:
        Webhook(f"whsec_{SECRET}").verify(request.body, request.headers)
    assert 8 == len(receiver.requests)
    assert deployment.log.read_text(encoding="utf-8").count("an attempt to deliver a notification to crm failed") in (
        1,
        2,
    )


def test_retry_after_is_respected(deployment: Deployment, receiver: Receiver) -> None:
    """Retry-After overrides the usual waits."""
    deployment.configure("crm")
    receiver.answers["/hook"] = lambda _, before: (200, {}) if before else (429, {"Retry-After": "2"})
    with deployment.running():
        notify(deployment.settings, notification(1))
        first, second = receiver.wait(2)

    assert second.time - first.time >= 1.9


def test_after_the_last_try_a_notification_is_a_dead_letter(deployment: Deployment, receiver: Receiver) -> None:
    """The dead letter has key, value and reason. Later notifications are delivered. A replay has the same id."""
    deployment.configure("crm, attempts: 3")
    refused = {"on": True}
    receiver.answers["/hook"] = lambda request, _: (
        ({"I1": 503, "I2": 400, "I3": 302}.get(request.invoice, 200) if refused["on"] else 200),
        {"Location": "/elsewhere"},
    )
    with deployment.running():
        notify(deployment.settings, *(notification(number) for number in range(1, 5)))
        requests = receiver.wait(6)
        deployment.await_metric('loyalty_webhook_messages_total{endpoint="crm",outcome="delivered"} 1.0')
        letters = list(dead_letters.DeadLetters(deployment.settings))
        refused["on"] = False
        replaying.replay(deployment.settings, letters, [deployment.settings.name_of(topics.LOYALTY)], since=0)
        again = receiver.wait(9)[6:]

    assert ["I1", "I1", "I1", "I2", "I3", "I4"] == [request.invoice for request in requests]
    assert [
        "webhook crm: answer 302 Found",
        "webhook crm: answer 400 Bad Request",
        "webhook crm: answer 503 Service Unavailable",
    ] == sorted(letter.reason for letter in letters)
    assert {b"CARD4711"} == {letter.key for letter in letters}
    assert {request.identity for request in requests if request.invoice != "I4"} == {each.identity for each in again}
    assert [] == receiver.of("/elsewhere")


def test_unreadable_records_become_dead_letters(deployment: Deployment, receiver: Receiver) -> None:
    """Records that are no notification become dead letters, and delivery continues."""
    deployment.configure("crm")
    endless = encoder(topics.LOYALTY, IDS)({**notification(1), "UpdatedTime": 2**62})
    with deployment.running():
        publish(deployment.settings, topics.LOYALTY, [(b"CARD4711", value) for value in (b"hello", None, endless)])
        notify(deployment.settings, notification(2))
        (request,) = receiver.wait(1)
        deployment.await_metric('loyalty_webhook_messages_total{endpoint="crm",outcome="dead"} 3.0')

    assert "I2" == request.invoice
    assert 3 == len(list(dead_letters.DeadLetters(deployment.settings)))


def test_an_endpoint_receives_only_its_kinds(deployment: Deployment, receiver: Receiver) -> None:
    """The other notifications count as done."""
    deployment.configure("crm, kinds: [tier, redeemed]")
    with deployment.running():
        kinds = ["earned", "tier", "released", "redeemed", "expired"]
        notify(deployment.settings, *(notification(number, kind=kind) for number, kind in enumerate(kinds, start=1)))
        requests = receiver.wait(2)
        topic = deployment.settings.name_of(topics.LOYALTY)
        deployment.await_metric(f'loyalty_webhook_lag{{endpoint="crm",topic="{topic}"}} 0.0')

    assert ["loyalty.tier", "loyalty.redeemed"] == [json.loads(request.body)["type"] for request in requests]
    assert 5 == committed(deployment.settings, "crm")


def test_a_new_endpoint_begins_at_the_end(deployment: Deployment, receiver: Receiver) -> None:
    """A new endpoint receives no history. Notifications that arrive while the process is down are delivered later."""
    deployment.configure("crm")
    notify(deployment.settings, notification(1))
    with deployment.running():
        pass
    notify(deployment.settings, notification(2))
    with deployment.running():
        (request,) = receiver.wait(1)

    assert "I2" == request.invoice


def test_after_a_kill_a_notification_is_delivered_again_with_the_same_id(
    deployment: Deployment, receiver: Receiver
) -> None:
    """After a kill between delivery and commit, the notification is delivered again and none is missing."""
    deployment.configure("crm")
    together = threading.Event()
    receiver.answers["/hook"] = lambda *_: (200 if together.wait(KAFKA_TIMEOUT_SECONDS) else 500, {})
    with deployment.running() as process:
        notify(deployment.settings, *(notification(number, card=f"card {number}") for number in range(1, 6)))
        before = receiver.wait(5)
        process.kill()
        process.wait(KAFKA_TIMEOUT_SECONDS)
    together.set()
    with deployment.running():
        after = receiver.wait(10)[5:]
        deployment.await_metric('loyalty_webhook_messages_total{endpoint="crm",outcome="delivered"} 5.0')

    assert {f"I{number}" for number in range(1, 6)} == {request.invoice for request in before}
    assert {(request.identity, request.body) for request in before} == {(each.identity, each.body) for each in after}
    assert 5 == committed(deployment.settings, "crm")


def test_a_stop_repeats_only_unfinished_deliveries(deployment: Deployment, receiver: Receiver) -> None:
    """SIGTERM during retries ends the process with status 0. A customer gets a delivered notification only once."""
    deployment.configure("crm, first-wait: PT60S")
    down = {"on": True}
    receiver.answers["/hook"] = lambda request, _: (503 if down["on"] and "I2" == request.invoice else 200, {})
    with deployment.running() as process:
        notify(deployment.settings, notification(1), notification(2), notification(3))
        receiver.wait(2)
        deployment.await_metric('loyalty_webhook_attempts_total{endpoint="crm",status="503"} 1.0')
    assert 0 == process.returncode
    down["on"] = False
    with deployment.running():
        requests = receiver.wait(4)

    assert ["I1", "I2", "I2", "I3"] == [request.invoice for request in requests]


def test_a_slow_endpoint_delays_no_other(deployment: Deployment, receiver: Receiver) -> None:
    """While one endpoint does not answer, the other receives everything."""
    deployment.configure("slow", "fast")
    over = threading.Event()
    receiver.answers["/slow"] = lambda *_: (200 if over.wait(KAFKA_TIMEOUT_SECONDS) else 500, {})
    with deployment.running():
        numbers = range(1, 301)
        notify(deployment.settings, *(notification(number, card=f"card {number}") for number in numbers))
        fast = receiver.wait(300, "/fast")
        assert {f"I{number}" for number in numbers} == {request.invoice for request in fast}
        # The eight parallel requests of the endpoint, without a response.
        assert 8 == len(receiver.wait(8, "/slow"))
        over.set()
        receiver.wait(300, "/slow")


def test_one_customers_notifications_keep_their_order(deployment: Deployment, receiver: Receiver) -> None:
    """Notifications of one customer arrive in order, despite parallel requests and failures."""
    deployment.configure("crm, concurrency: 20")
    receiver.answers["/hook"] = lambda request, before: (
        503 if not before and request.identity[-1] in "01" else 200,
        {},
    )
    cards = [f"card {number}" for number in range(10)]
    with deployment.running():
        notify(deployment.settings, *(notification(number, card=card) for number in range(1, 21) for card in cards))
        deployment.await_metric('loyalty_webhook_messages_total{endpoint="crm",outcome="delivered"} 200.0')

    for card in cards:
        of_card = [json.loads(request.body)["data"] for request in receiver.requests]
        sequences = [data["Sequence"] for data in of_card if card == data["CustomerCardNo"]]
        assert sorted(sequences) == sequences
        assert set(range(1, 21)) == set(sequences)


def test_two_processes_share_an_endpoint(deployment: Deployment, receiver: Receiver) -> None:
    """After the kill of one of two processes, the other takes over, and everything arrives."""
    deployment.configure("crm")
    with deployment.running():
        other = Deployment(deployment.settings, receiver, deployment.folder, free_port(), deployment.folder / "other")
        with other.running() as second:
            notify(deployment.settings, *(notification(number, card=f"card {number}") for number in range(1, 101)))
            receiver.wait(50)
            second.kill()
            second.wait(KAFKA_TIMEOUT_SECONDS)
        notify(deployment.settings, *(notification(number, card=f"card {number}") for number in range(101, 201)))
        with receiver.changed:
            receiver.changed.wait_for(
                lambda: 200 == len({request.identity for request in receiver.requests}), KAFKA_TIMEOUT_SECONDS
            )

    assert {f"I{number}" for number in range(1, 201)} == {request.invoice for request in receiver.requests}


def test_a_check_prints_the_configuration_without_secrets(deployment: Deployment) -> None:
    """--check reads endpoints and secrets without a broker. It prints neither a secret nor a URL."""
    deployment.configure("crm, kinds: [tier], attempts: 4")
    (deployment.folder / "secret").write_text(f"whsec_{SECRET}\nwhsec_{OTHER_SECRET}\n", encoding="utf-8")

    done = subprocess.run(**deployment.command("--check"), capture_output=True, text=True, check=True)

    assert ("crm: tier; 2 secret(s), 4 attempts\n", "") == (done.stdout, done.stderr)


def test_no_broker_is_one_clear_line(deployment: Deployment) -> None:
    """The line names the address, and the exit status is 1."""
    deployment.configure("crm")
    command = deployment.command()
    command["env"]["LOYALTY_KAFKA_BOOTSTRAP_SERVERS"] = "127.0.0.1:1"

    done = subprocess.run(**command, capture_output=True, text=True, check=False)

    assert 1 == done.returncode
    assert done.stderr.splitlines()[-1].startswith("error: no Kafka broker answers at 127.0.0.1:1: start Kafka")
