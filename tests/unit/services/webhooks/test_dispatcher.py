"""The dispatcher of an endpoint, with a reader in place of Kafka."""

import asyncio
import threading
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import httpx
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from prometheus_client import CollectorRegistry

from schemas import topics
from services.domain.entries import Kind
from services.messaging import clients
from services.messaging.avro import encoder
from services.messaging.log_reader import Batch
from services.messaging.publishing import PublishError
from services.settings import Settings
from services.webhooks.dead_letters import DeadLetterWriter
from services.webhooks.delivery import Delivery
from services.webhooks.dispatcher import EndpointDispatcher
from services.webhooks.endpoints import Endpoint
from services.webhooks.group_reader import MAX_UNCOMMITTED, GroupReader
from services.webhooks.message import Message
from services.webhooks.metrics import Metrics
from tests.support.builders import IDS, entry, notification
from tests.support.mock_kafka import hanging, lose_leader, mock_broker
from tests.unit.services.webhooks.dispatchers import (
    ENDPOINT,
    STUCK,
    TOPIC,
    Group,
    Reader,
    Record,
    dispatching,
    until,
    use,
)

pytestmark = pytest.mark.anyio


async def test_one_notification_in_retry_keeps_at_most_500_uncommitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition pauses behind it, so a crash repeats 500 deliveries at most. After its delivery the partition
    continues.
    """
    reader = Reader({0: [STUCK, *(f"card {number % 97}" for number in range(1, 1_500))]})
    async with dispatching(reader, monkeypatch) as (released, delivered):
        await until(lambda: len(delivered) == MAX_UNCOMMITTED - 1 and bool(reader.paused))
        await asyncio.sleep(0.2)
        assert (MAX_UNCOMMITTED, 0) == (reader.read_count[0], reader.committed[0])
        released.set()
        await until(lambda: reader.committed[0] == 1_500)
    assert 1_500 == len(set(delivered))
    assert reader.max_uncommitted <= MAX_UNCOMMITTED == 500


async def test_the_log_names_a_notification_by_its_position(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The webhook-id is a hash without a key. So whoever reads it can find the card by trial."""
    answers = iter([503, 200])
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(next(answers))))
    endpoint = Endpoint("crm", "http://crm.example", (b"x" * 24,), first_wait=timedelta(seconds=0.01))
    reader = Reader({3: ["a"]})
    send = Delivery(endpoint, client, Metrics(CollectorRegistry())).deliver
    async with dispatching(reader, monkeypatch, send=send) as (_, delivered):
        await until(lambda: reader.committed[3] == 1)
    (identity,) = delivered
    (line,) = (each for each in capsys.readouterr().out.splitlines() if "an attempt" in each)
    assert "endpoint=crm offset=0 partition=3" in line
    assert identity not in line


async def test_an_endpoint_gets_only_its_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of the others are committed, too."""
    reader = Reader({0: ["a", "a"]})
    endpoint = replace(ENDPOINT, kinds=frozenset({Kind.TIER}))
    async with dispatching(reader, monkeypatch, endpoint=endpoint) as (_, delivered):
        await until(lambda: reader.committed[0] == 2)
    assert [] == delivered


async def test_nothing_stays_in_memory_after_a_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the memory would grow with each customer."""
    use(reader := Reader({0: ["a", "b", "a"]}), monkeypatch)
    letters, metrics, stopping = cast(DeadLetterWriter, None), Metrics(CollectorRegistry()), threading.Event()
    each = EndpointDispatcher(ENDPOINT, Settings(), IDS, AsyncMock(), letters, metrics)
    running = asyncio.create_task(each.run(stopping))
    try:
        async with asyncio.timeout(60):
            await until(lambda: reader.committed[0] == 3)
        assert (set(), {}) == (each._deliveries, each._last_of_key)
    finally:
        stopping.set()
        await running


async def test_a_notification_waits_for_all_earlier_ones_of_its_customer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one has been delivered, and the second one is in retry when the third one arrives."""
    reader, begun, released = Reader({0: ["a", "a"]}), [], asyncio.Event()

    async def send(message: Message) -> None:
        begun.append(message.identity)
        if len(begun) == 2:
            await released.wait()

    async with dispatching(reader, monkeypatch, send=send) as (_, delivered):
        await until(lambda: len(begun) == 2)
        reader._partitions[0].append(Record(0, 2, "a"))
        await until(lambda: reader.read_count[0] == 3)
        await asyncio.sleep(0.2)
        assert 2 == len(begun)
        released.set()
        await until(lambda: reader.committed[0] == 3)
    assert begun == delivered


@pytest.mark.parametrize(
    "value",
    [b"not Avro", encoder(topics.LOYALTY, IDS)(notification("a", entry(1, time=2**62)))],
    ids=["not Avro", "a time that no calendar has"],
)
async def test_a_record_that_cannot_be_sent_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch, value: bytes) -> None:
    """It stops neither its customer nor the process."""
    reader, letters = Reader({0: ["a", "a"]}), AsyncMock()
    usual = Record.value
    monkeypatch.setattr(Record, "value", lambda each: usual(each) if each.offset() else value)
    async with dispatching(reader, monkeypatch, letters) as (_, delivered):
        await until(lambda: reader.committed[0] == 2)
    ((_, reason),) = (call.args for call in letters.write.await_args_list)
    assert reason.startswith("webhook crm: ")
    assert 1 == len(delivered)


async def test_a_notification_in_retry_stops_no_other_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition has its own limit."""
    reader = Reader({0: [STUCK] + ["a"] * 600, 1: ["b"] * 800})
    async with dispatching(reader, monkeypatch) as (released, delivered):
        await until(lambda: reader.committed[1] == 800)
        assert 0 == reader.committed[0]
        released.set()
        await until(lambda: reader.committed[0] == 601)
    assert 1_401 == len(set(delivered))


async def test_failed_commits_count_as_uncommitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Kafka takes no commit, the dispatcher reads no more than the limit, and then commits all."""
    reader = Reader({0: ["a", "b"] * 300})
    reader.commits_fail = True
    async with dispatching(reader, monkeypatch) as (_, delivered):
        await until(lambda: len(delivered) == MAX_UNCOMMITTED)
        await asyncio.sleep(0.2)
        assert MAX_UNCOMMITTED == len(delivered)
        reader.commits_fail = False
        await until(lambda: reader.committed[0] == 600)
    assert 600 == len(set(delivered))


async def test_one_commit_waits_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Librdkafka repeats a commit after some errors, so an earlier offset could replace a later one."""
    reader = Reader({0: ["a", "b"] * 50})
    commit, answer, reads, in_flight = reader.commit, reader._answer_commits, count(), []

    def counted(offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        commit(offsets, asynchronous=asynchronous)
        in_flight.append(len(reader._asked))

    monkeypatch.setattr(reader, "commit", counted)
    monkeypatch.setattr(reader, "_answer_commits", lambda: next(reads) % 5 or answer())
    async with dispatching(reader, monkeypatch):
        await until(lambda: reader.committed[0] == 100)
        assert {1} == {*in_flight}


async def test_a_partition_without_commits_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have more records than the limit."""
    reader = Reader({0: ["a"], 1: ["b"] * 2 * MAX_UNCOMMITTED})

    def answer(offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        assert asynchronous
        for each in offsets:
            reader.committed[each.partition] = each.offset
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        pairs = [(each, None if each.partition else error) for each in offsets]
        answers = [SimpleNamespace(partition=each.partition, offset=each.offset, error=error) for each, error in pairs]
        reader.on_commit(None, cast(Any, answers))

    monkeypatch.setattr(reader, "commit", answer)
    async with dispatching(reader, monkeypatch):
        await until(lambda: reader.committed[1] == 2 * MAX_UNCOMMITTED)


async def test_a_commit_that_fails_for_one_partition_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an answer has no error of its own, but the partition has one."""
    reader = Reader({0: ["a"], 1: []})
    commit, errors = reader.commit, [KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)]

    def commit_with_error(offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        if errors:
            reader.on_commit(None, [cast(Any, SimpleNamespace(partition=0, offset=1, error=errors.pop()))])
        else:
            commit(offsets, asynchronous=asynchronous)

    monkeypatch.setattr(reader, "commit", commit_with_error)
    async with dispatching(reader, monkeypatch):
        await until(lambda: reader.committed[0] == 1)
    assert (1, []) == (reader.committed[0], errors)


async def test_the_lag_grows_while_all_partitions_are_paused() -> None:
    """A receiver does not answer, so the dispatcher reads no further. An alert on the lag must still fire, also if one
    of the partitions then has no leader.
    """
    registry = CollectorRegistry()
    value = Record(0, 0, "card").value()

    def lag() -> float:
        return registry.get_sample_value("loyalty_webhook_lag", {"endpoint": "crm", "topic": TOPIC}) or 0

    async def deliver(_: Message) -> None:
        await asyncio.Event().wait()

    def publish(broker: Producer, records: int, *partitions: int) -> None:
        for partition in partitions:
            for _ in range(records):
                broker.produce(TOPIC, value, partition=partition)
        broker.flush(10)

    with mock_broker() as (settings, broker):
        publish(broker, 1, 0)  # the topic exists
        each = EndpointDispatcher(ENDPOINT, settings, IDS, deliver, cast(DeadLetterWriter, None), Metrics(registry))
        stopping = threading.Event()
        running = asyncio.create_task(each.run(stopping))
        try:
            async with asyncio.timeout(60):
                # A record from before the dispatcher has its partitions is not delivered.
                while not each._deliveries:
                    publish(broker, 1, 0, 1)
                    await asyncio.sleep(0.05)
                publish(broker, MAX_UNCOMMITTED, 0, 1)
                await until(lambda: each._reader._paused == {0, 1})
                publish(broker, MAX_UNCOMMITTED, 0, 1)
                await until(lambda: lag() >= 4 * MAX_UNCOMMITTED)
                known = lag()
                lose_leader(broker, TOPIC)
                publish(broker, MAX_UNCOMMITTED, 1)
                await until(lambda: lag() >= known + MAX_UNCOMMITTED)
        finally:
            stopping.set()
            await running


async def test_paused_partitions_take_turns_to_ask_for_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question can wait for half a second behind a fetch. Meanwhile no other partition is read."""
    use(reader := Reader({}), monkeypatch)
    positions = [TopicPartition(TOPIC, partition, 1) for partition in range(4)]
    questions: list[int] = []

    def ends(of: TopicPartition, *, cached: bool = False, **_: object) -> tuple[int, int]:
        questions.extend([] if cached else [of.partition])
        return (0, 1) if cached else (0, 11)

    monkeypatch.setattr(reader, "assignment", lambda: positions)
    monkeypatch.setattr(reader, "position", lambda _: positions, raising=False)
    monkeypatch.setattr(reader, "get_watermark_offsets", ends, raising=False)
    with GroupReader("crm", Settings()) as made:
        assert 0 == await made.unread()
        made._paused |= {0, 1, 3}
        assert [10, 20, 30] == [await made.unread() for _ in range(3)]
        assert [0, 1, 3] == sorted(questions)


async def test_the_dispatcher_ends_while_the_broker_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for no answer to its commits. librdkafka does, for minutes."""
    monkeypatch.setattr(clients, "CLOSE_SECONDS", 0.1)
    with mock_broker() as (settings, broker), ExitStack() as until_the_end:
        stopping = threading.Event()

        async def deliver(_: Message) -> None:
            if not stopping.is_set():
                broker.flush(10)  # the broker must not keep this producer from its end
                until_the_end.enter_context(hanging(broker))
                stopping.set()

        broker.produce(TOPIC, Record(0, 0, "a").value())
        broker.flush(10)  # the topic exists
        metrics = Metrics(CollectorRegistry())
        each = EndpointDispatcher(ENDPOINT, settings, IDS, deliver, cast(DeadLetterWriter, None), metrics)
        running = asyncio.create_task(each.run(stopping))
        # A record from before the dispatcher has its partitions is not delivered.
        while not stopping.is_set() and not running.done():
            broker.produce(TOPIC, Record(0, 0, "a").value())
            broker.poll(0)
            await asyncio.sleep(0.05)
        await running
        assert stopping.is_set()


async def test_a_short_outage_of_the_broker_ends_no_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Librdkafka connects again by itself. Any other error of Kafka ends the dispatcher."""
    reader = Reader({0: ["a", "b"]})
    read, errors = reader.read, [KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT]

    def failing(most: int, seconds: float) -> Batch:
        if errors:
            reader.error = "Kafka does not answer"
            raise KafkaException(KafkaError(errors.pop()))
        return read(most, seconds)

    monkeypatch.setattr(reader, "read", failing)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):  # noqa: PT012 - its end raises
        async with dispatching(reader, monkeypatch):
            await until(lambda: reader.committed[0] == 2)
            assert reader.error is None
            errors.append(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            await until(lambda: not errors)


async def test_a_new_consumer_subscribes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former consumer has lost all brokers."""
    reader = Reader({0: ["a"]})
    read, renewed, subscribed = reader.read, [False, True], []

    def failing(most: int, seconds: float) -> Batch:
        if len(subscribed) == 1:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return read(most, seconds)

    monkeypatch.setattr(reader, "read", failing)
    monkeypatch.setattr(reader, "renew", lambda: renewed.pop(0))
    monkeypatch.setattr(reader, "subscribe", lambda topics, **_: subscribed.append(topics))
    async with dispatching(reader, monkeypatch):
        await until(lambda: reader.committed[0] == 1)
    assert [[TOPIC], [TOPIC]] == subscribed


async def test_a_new_consumer_commits_without_the_answer_to_the_former_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer may come after minutes. Without commits, each partition would pause at its limit."""
    use(reader := Group({0: ["a"], 1: ["b"]}), monkeypatch)
    reader.paused.add(1)
    with GroupReader("crm", Settings()) as made:
        (record,), _ = await made.read(0)
        made.finish(record)
        await made.commit()
        reader._asked.clear()  # no answer

        def lose_all_brokers() -> None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

        reader.rebalances.append(lose_all_brokers)
        monkeypatch.setattr(reader, "renew", lambda: reader.on_revoke(None, []) or True)
        assert ([], True) == await made.read(0)
        reader._asked.clear()  # no answer to the last commit of the former consumer either
        reader.resume([TopicPartition(TOPIC, 1)])
        (record,), _ = await made.read(0)
        made.finish(record)
        await made.commit()
        assert [[1]] == [[each.partition for each in offsets] for offsets in reader._asked]


async def test_a_partition_that_comes_back_is_not_paused_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Librdkafka keeps the pause of a partition over its revocation. Nothing would read the partition again."""
    reader = Group({0: [STUCK, *(f"card {number}" for number in range(1, 600))]})
    partitions = [TopicPartition(TOPIC, 0, 1)]
    consumer = SimpleNamespace(
        committed=lambda _, timeout: partitions if timeout else None, assign=lambda _: None, resume=reader.resume
    )
    async with dispatching(reader, monkeypatch) as (released, _):
        await until(lambda: bool(reader.paused))
        reader.on_revoke(consumer, partitions)
        reader.read_count[0] = 1
        released.set()
        reader.on_assign(consumer, partitions)
        await until(lambda: reader.read_count[0] == 600)
        assert not reader.paused


async def test_a_new_endpoint_starts_at_the_end_and_commits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the commit, a restart before the first notification would skip the notifications of the pause."""
    reader, assigned = Group({0: []}), list[TopicPartition]()
    consumer = SimpleNamespace(
        committed=lambda *_, **__: [TopicPartition(TOPIC, 0)],
        get_watermark_offsets=lambda *_, **__: (3, 7),
        assign=assigned.extend,
        resume=reader.resume,
    )
    async with dispatching(reader, monkeypatch):
        reader.rebalances.append(lambda: reader.on_assign(consumer, []))
        await until(lambda: reader.committed[0] == 7)
    assert [7] == [each.offset for each in assigned]


@pytest.mark.parametrize("end", ["stop", "revocation"])
async def test_a_finished_record_is_committed_at_the_end(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Otherwise the next owner of the partition would deliver it again."""
    use(reader := Group({0: ["a"]}), monkeypatch)
    with GroupReader("crm", Settings()) as made:
        (record,), _ = await made.read(0)
        made.finish(record)
        if end == "revocation":
            reader.rebalances.append(lambda: reader.on_revoke(None, []))
            await made.read(0)
            assert 1 == reader.committed[0]
    assert 1 == reader.committed[0]


async def test_a_revocation_commits_what_was_finished_after_the_commit_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(reader := Group({0: ["a", "b"]}), monkeypatch)
    with GroupReader("crm", Settings()) as made:
        (first, second), _ = await made.read(0)
        made.finish(first)
        await made.commit()
        made.finish(second)
        reader.rebalances.append(lambda: reader.on_revoke(None, []))
        await made.read(0)
        assert 2 == reader.committed[0]


async def test_an_endpoint_whose_offset_the_topic_does_not_have_starts_at_the_first_record() -> None:
    """For example, the topic was created again. A start at the end would skip the waiting notifications."""
    with mock_broker() as (settings, broker):
        broker.produce(TOPIC, b"waits", partition=0)
        broker.flush(10)
        member = clients.consumer(settings, "test", **{"group.id": f"{settings.topic_prefix}loyalty-webhooks-crm"})
        member.commit(offsets=[TopicPartition(TOPIC, 0, 100)], asynchronous=False)
        member.close()
        with GroupReader("crm", settings) as made:
            async with asyncio.timeout(60):
                while not (found := await made.read(0.5))[0]:
                    pass
    assert [b"waits"] == [record.value() for record in found[0]]


async def test_a_record_of_a_partition_that_was_just_revoked_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner of the partition reads it. The revocation comes while the reader looks for more records."""
    use(reader := Group({0: ["a"]}), monkeypatch)
    read = reader.read

    def read_and_lose(most: int, seconds: float) -> Batch:
        if (found := read(most, seconds)).records:
            reader.rebalances.append(lambda: reader.on_revoke(None, []))
        return found

    monkeypatch.setattr(reader, "read", read_and_lose)
    with GroupReader("crm", Settings()) as made:
        assert ([], True) == await made.read(0)


async def test_an_unknown_committed_offset_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offset is not that of a new endpoint. A start at the end would skip the waiting notifications."""
    reader = Group({0: ["a"]})
    answer = SimpleNamespace(partition=0, offset=-1001, error=KafkaError(KafkaError.NOT_COORDINATOR))
    consumer = SimpleNamespace(committed=lambda *_, **__: [answer])
    with pytest.raises(KafkaException, match="NOT_COORDINATOR"):  # noqa: PT012 - its end raises
        async with dispatching(reader, monkeypatch):
            reader.rebalances.append(lambda: reader.on_assign(consumer, []))
            await until(lambda: not reader.rebalances)


@pytest.mark.parametrize("seconds", [1, 45, 3600])
def test_each_session_timeout_makes_a_member(seconds: int) -> None:
    """The settings allow a second to an hour. librdkafka refuses a session that is longer than the poll interval."""
    settings = Settings(session_timeout=timedelta(seconds=seconds))
    with GroupReader("crm", settings) as made:
        assert made._reader.consumer


async def test_deliveries_of_a_revoked_partition_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner of the partition delivers the notification. Two processes would mix the order of a customer."""
    reader = Group({0: [STUCK], 1: ["a"], 2: ["b"]})
    reader.paused = {1, 2}
    again = threading.Event()

    def revoke() -> None:
        reader.on_revoke(None, [TopicPartition(TOPIC, 0)])
        reader.resume([TopicPartition(TOPIC, 1)])

    async with dispatching(reader, monkeypatch) as (released, delivered):
        await until(lambda: reader.read_count[0] == 1)
        reader.rebalances.append(again.set)
        await until(again.is_set)  # the delivery has begun before this read
        reader.rebalances.append(revoke)
        await until(lambda: len(delivered) == 1)  # a record that was read after the revocation
        released.set()
        reader.resume([TopicPartition(TOPIC, 2)])
        await until(lambda: len(delivered) >= 2)
    assert 2 == len(delivered)
    assert [0, 1, 1] == [reader.committed[number] for number in range(3)]


async def test_no_record_overtakes_one_that_could_not_be_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends, because it can write no dead letter. The next one delivers both records, in their order."""
    reader = Reader({0: ["a", "a"]})
    value, read = Record.value, reader.read
    all_read, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(Record, "value", lambda each: value(each) if each.offset() else b"not Avro")

    def read_and_wait(most: int, seconds: float) -> Batch:
        if reader.read_count[0] == 2 and seconds:  # the next poll, so both deliveries have begun
            all_read.set()
            go_on.wait(60)
        return read(most, seconds)

    monkeypatch.setattr(reader, "read", read_and_wait)

    class Letters:
        def __init__(self) -> None:
            self.fail = asyncio.Event()

        async def write(self, *_: object) -> None:
            await self.fail.wait()
            raise PublishError("no broker answers")

    letters = Letters()
    overtook: list[str] = []
    with pytest.raises(PublishError, match="no broker answers"):  # noqa: PT012 - its end raises
        async with dispatching(reader, monkeypatch, letters) as (_, delivered):
            await until(all_read.is_set)
            begun = asyncio.all_tasks()
            letters.fail.set()
            await until(lambda: len(begun & asyncio.all_tasks()) == len(begun) - 2)  # both deliveries have ended
            go_on.set()
            overtook.extend(delivered)
    assert [] == overtook
    assert 0 == reader.committed[0]


@pytest.mark.parametrize("outcome", ["delivered", "dead"])
async def test_each_outcome_is_counted_from_zero(monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    """An alert sees no increase of a series that begins with its first notification."""
    registry = CollectorRegistry()
    async with dispatching(Reader({}), monkeypatch, registry=registry):
        labels = {"endpoint": ENDPOINT.name, "outcome": outcome}
        assert 0 == registry.get_sample_value("loyalty_webhook_messages_total", labels)


async def test_the_delay_of_each_delivery_is_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins when the broker appends the record: here a millisecond after the epoch."""
    registry, reader = CollectorRegistry(), Reader({0: ["a"]})
    async with dispatching(reader, monkeypatch, registry=registry):
        await until(lambda: reader.committed[0] == 1)
    labels = {"endpoint": ENDPOINT.name}
    assert 1 == registry.get_sample_value("loyalty_webhook_delay_seconds_count", labels)
    assert (registry.get_sample_value("loyalty_webhook_delay_seconds_sum", labels) or 0) > 1e9
