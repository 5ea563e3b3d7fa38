"""Clients that lose all brokers for ever, or an acknowledgement. A proxy in front of the broker causes both."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka import KafkaException, TopicPartition

from schemas.topics import LOYALTY_DECISIONS, POS_INVOICES
from services.codecs.records import mark_of
from services.commands import log as command_log
from services.commands.log import CommandLog
from services.interactive_queries.membership import GroupMembership
from services.messaging import clients
from services.messaging.clients import Client, has_lost_all_brokers
from services.messaging.log_reader import LogReader
from services.messaging.publishing import PublishError
from services.messaging.resending import ResendingProducer
from services.settings import Settings
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS, publish, read_all, records_of
from tests.support.kafka_proxy import KafkaProxy
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("known_address", "topics_created")


@pytest.fixture
def known_address(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--containers") or pytestconfig.getoption("--kafka-bootstrap-servers"):
        pytest.skip("the proxy does not know the address that this broker advertises")


@pytest.fixture
def behind_proxy(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of clients behind a proxy. The first client of each kind has lost all brokers before it is used."""
    monkeypatch.setattr(clients, "LOST_SECONDS", 1.0)
    monkeypatch.setattr(clients, "_PROBE_SECONDS", 1.0)
    monkeypatch.setattr(command_log, "DELIVERY_SECONDS", 1.0)
    with closing(KafkaProxy(settings.kafka_bootstrap_servers)) as proxy:
        for kind in ("consumer", "producer"):
            monkeypatch.setattr(clients, kind, FirstIsLost(getattr(clients, kind), proxy))
        yield settings.model_copy(update={"kafka_bootstrap_servers": proxy.bootstrap_servers})


class FirstIsLost:
    """Creates clients. The first one has lost all brokers.

    Attributes:
        created: these clients.
    """

    def __init__(self, create: Callable[..., Client], proxy: KafkaProxy) -> None:
        self._create = create
        self._proxy = proxy
        self.created: list[Client] = []

    def __call__(self, settings: Settings, *arguments: Any, **options: Any) -> Client:
        client = self._create(settings, *arguments, **options)
        if settings.kafka_bootstrap_servers != self._proxy.bootstrap_servers:
            return client
        # About one in five such answers makes a new client lose its brokers.
        deadline = time.monotonic() + KAFKA_TIMEOUT_SECONDS
        while not self.created and not self._is_lost_after_an_answer(client, settings):
            assert time.monotonic() < deadline, "librdkafka keeps its brokers: is has_lost_all_brokers still needed?"
            client = self._create(settings, *arguments, **options)
        self.created.append(client)
        return client

    def _is_lost_after_an_answer(self, client: Client, settings: Settings) -> bool:
        client.list_topics(timeout=KAFKA_TIMEOUT_SECONDS)
        with self._proxy.hiding(), suppress(KafkaException):
            client.list_topics(timeout=1)
        return has_lost_all_brokers(client, settings) and has_lost_all_brokers(client, settings)


def test_an_outage_of_kafka_replaces_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka returns at the worst time: a new client finds it at once, and the old one waits between two attempts."""
    proxy = KafkaProxy(settings.kafka_bootstrap_servers)
    behind = settings.model_copy(update={"kafka_bootstrap_servers": proxy.bootstrap_servers})
    clients_of_all_kinds = [clients.producer(behind, "test"), clients.consumer(behind, "test"), clients.admin(behind)]
    for each in clients_of_all_kinds:
        each.list_topics(timeout=KAFKA_TIMEOUT_SECONDS)
    proxy.close()
    for each in clients_of_all_kinds:
        assert not has_lost_all_brokers(each, behind)
    admin = clients.admin
    for each in clients_of_all_kinds:
        with ExitStack() as outage_ends:

            def admin_after_the_outage(*arguments: Any, ends: ExitStack = outage_ends) -> Client:
                ends.enter_context(closing(KafkaProxy(settings.kafka_bootstrap_servers, proxy.port)))
                return admin(*arguments)

            monkeypatch.setattr(clients, "admin", admin_after_the_outage)
            assert not has_lost_all_brokers(each, behind)


def test_a_reader_continues_with_a_new_consumer(settings: Settings, behind_proxy: Settings) -> None:
    """The reader connects again and reads from its position, so it loses nothing."""
    topic = settings.name_of(POS_INVOICES)
    reader = LogReader(behind_proxy, "test")
    values: list[bytes | None] = []

    def connect() -> None:
        reader.consumer.assign([TopicPartition(topic, number, 0) for number in range(behind_proxy.partitions)])

    def poll_once() -> None:
        values.extend(each.value() for found in reader.read(10, 0.1).records.values() for each in found)

    publish(settings, POS_INVOICES, [(b"STR1", b"first"), (b"STR1", b"second")])
    with ExitStack() as ends:
        thread = threading.Thread(target=reader.run, args=(connect, poll_once), daemon=True)
        thread.start()
        ends.callback(thread.join)
        ends.callback(reader.stop)
        wait_for("both records", lambda: len(values) == 2)
    assert [b"first", b"second"] == values
    assert len(created(clients.consumer)) > 1


def test_records_without_an_acknowledgement_are_sent_again(settings: Settings, behind_proxy: Settings) -> None:
    """The records keep their order and headers, and the caller gets one report for each."""
    delivered: list[bytes] = []

    def on_delivery(value: bytes, error: object) -> None:
        assert error is None
        delivered.append(value)

    def all_are_delivered() -> bool:
        producer.poll(0)
        return not len(producer)

    producer = ResendingProducer(behind_proxy, "test")
    values = [b"first", b"second", b"third"]
    for value in values:
        producer.produce(settings.name_of(POS_INVOICES), value, b"STR1", [("id", value)], partial(on_delivery, value))
    wait_for("all acknowledgements", all_are_delivered)
    producer.close(0)

    assert values == delivered
    assert [(each, [("id", each)]) for each in values] == [
        (each.value(), each.headers()) for each in read_all(settings, POS_INVOICES)
    ]
    assert len(created(clients.producer)) > 1


def test_a_record_whose_acknowledgement_is_lost_is_stored_once(settings: Settings) -> None:
    """The producer sends the record again, and the broker drops the repetition."""

    def is_lost() -> bool:
        producer.poll(0)
        return proxy.lost["test"] > 0

    def is_delivered() -> bool:
        producer.poll(0)
        return not len(producer)

    with closing(KafkaProxy(settings.kafka_bootstrap_servers)) as proxy:
        behind = settings.model_copy(update={"kafka_bootstrap_servers": proxy.bootstrap_servers})
        producer = ResendingProducer(behind, "test")
        with proxy.losing():
            producer.produce(settings.name_of(POS_INVOICES), b"once", b"STR1", [], lambda _: None)
            wait_for("a lost acknowledgement", is_lost)
        wait_for("the acknowledgement", is_delivered)
        producer.close(0)

    assert [b"once"] == [each.value() for each in read_all(settings, POS_INVOICES)]


def test_the_next_command_gets_a_new_producer(settings: Settings, behind_proxy: Settings) -> None:
    """The command with the lost producer fails in time, and its caller tries again."""
    log = CommandLog(behind_proxy)

    def mark() -> bool:
        try:
            asyncio.run(log.mark(mark_of("retried", "reserve", "hash")))
        except PublishError:
            return False
        return True

    assert not mark()
    wait_for("the mark", mark)
    log.close()

    assert {"retried"} == {each["CommandID"] for each in records_of(settings, LOYALTY_DECISIONS)}
    assert len(created(clients.producer)) > 1


@pytest.mark.parametrize("copies", [None, uuid4()], ids=["dynamic", "static"])
def test_a_new_member_joins_the_group(behind_proxy: Settings, copies: UUID | None) -> None:
    """The instance gets its partitions again, without a restart. A static member is the same member as before."""
    membership = GroupMembership(behind_proxy, "http://127.0.0.1:1", copies)
    membership.join({behind_proxy.name_of(POS_INVOICES): behind_proxy.partitions})
    try:
        wait_for("all partitions", lambda: membership.lease_holds and len(membership.owned) == behind_proxy.partitions)
    finally:
        membership.leave()
    assert len(created(clients.consumer)) > 1


def created(factory: Any) -> list[Client]:
    found: list[Client] = factory.created
    return found
