"""The producer of commands, on the broker that librdkafka contains for tests."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from confluent_kafka import KafkaError, Producer

from schemas.topics import LOYALTY_COMMANDS, LOYALTY_DECISIONS
from services.codecs.events import command_record
from services.codecs.records import mark_of
from services.commands.log import CommandLog
from services.domain.events import Block
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaIds, SchemaRegistryUnavailableError
from services.messaging.topic_reader import records_of
from services.settings import Settings
from tests.support.builders import IDS
from tests.support.mock_kafka import fail, mock_broker, refuse_next
from tests.support.waiting import wait_for

PRODUCE = 0

pytestmark = pytest.mark.anyio


@contextmanager
def broker_with_topics() -> Iterator[tuple[Settings, Producer]]:
    with mock_broker() as (settings, broker):
        for each in (LOYALTY_COMMANDS, LOYALTY_DECISIONS):
            broker.list_topics(settings.name_of(each), timeout=10)  # creates it
        yield settings, broker


@pytest.fixture
def settings() -> Iterator[Settings]:
    with broker_with_topics() as (settings, _):
        yield settings


def test_a_producer_is_replaced_after_a_fatal_error(settings: Settings) -> None:
    """The failed producer would refuse all further commands."""
    log = CommandLog(settings)

    def marks() -> bool:
        try:
            asyncio.run(log.mark(mark_of("0123", "reserve", "hash")))
        except PublishError:
            return False
        return True

    assert marks()
    failed = log._producer
    assert failed
    fail(failed)
    wait_for("the mark", marks)
    assert failed is not log._producer
    log.close()


async def test_a_command_has_the_key_of_its_card_and_an_error_if_the_broker_refuses_it() -> None:
    """The pipeline refuses other keys. Without the error, the caller would wait for a decision."""
    with broker_with_topics() as (settings, broker):
        log = CommandLog(settings)
        await log.send(command_record("4711", Block(append_time=0, command_id="0123")))
        (sent,) = records_of(settings, settings.name_of(LOYALTY_COMMANDS), "test")
        assert b"4711" == sent.key()

        refuse_next(broker, PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(PublishError, match="authorization failed"):
            await log.mark(mark_of("0123", "block", "hash"))
        log.close()


async def test_commands_leave_the_threads_of_asyncio_free(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the Schema Registry does not answer, scans, tokens and programmes need these threads."""
    log, answered = CommandLog(settings), Event()

    def ask(_: Settings) -> None:
        answered.wait(20)
        raise SchemaRegistryUnavailableError

    monkeypatch.setattr("services.commands.log.schema_ids", ask)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    mark = asyncio.create_task(log.mark(mark_of("0123", "reserve", "hash")))
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(5):
            await asyncio.to_thread(int)
    finally:
        answered.set()
    with pytest.raises(PublishError):
        await mark
    log.close()


async def test_a_record_is_not_written_after_its_caller_has_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another instance may own the command by then. It would find a mark after its decision.

    Two records wait for the Schema Registry. One of them has a thread, and the other one waits for this thread.
    """
    log, answered = CommandLog(settings), Event()

    def ask(_: Settings) -> SchemaIds:
        answered.wait(20)
        return IDS

    monkeypatch.setattr("services.commands.log.schema_ids", ask)
    monkeypatch.setattr("services.commands.log.DELIVERY_SECONDS", 0.1)
    log._threads = ThreadPoolExecutor(1)
    marks = (log.mark(mark_of(command_id, "reserve", "hash")) for command_id in ("0123", "4567"))
    for error in await asyncio.gather(*marks, return_exceptions=True):
        assert isinstance(error, PublishError)
        assert "could not be prepared in time" in str(error)
    answered.set()
    log._threads.shutdown()
    log.close()
    assert [] == list(records_of(settings, settings.name_of(LOYALTY_DECISIONS), "test"))
