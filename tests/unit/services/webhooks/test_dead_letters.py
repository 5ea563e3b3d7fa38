"""The dead letters of the webhooks, on the broker that librdkafka contains for tests."""

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import Message, Producer

from services.messaging import headers
from services.messaging.dead_letters import dead_letter_of
from services.messaging.publishing import DELIVERY_TIMEOUT, PublishError
from services.messaging.replaying import select
from services.messaging.topic_reader import records_of
from services.settings import Settings
from services.webhooks.dead_letters import DeadLetterWriter
from tests.support.mock_kafka import hanging


@pytest.mark.parametrize(
    ("value", "headers_of_record", "kept", "end"),
    [
        (b"v", [("a", b"x" * 500_000)], (b"k", b"v", 5), "a reason"),
        (b"v", [("a", b"x" * 600_000)], (None, b"v", 4), headers.WITHOUT_HEADERS),
        (b"v", [("", None)] * 100_000, (None, b"v", 4), headers.WITHOUT_HEADERS),
        (bytes(headers.LARGEST_VALUE + 1), [], (b"k", None, 4), headers.TOO_LARGE),
    ],
    # Without ids, pytest would write the whole value into the name of the test: 60 MB in each process.
    ids=["headers-fit", "large-header", "many-headers", "large-value"],
)
def test_a_dead_letter_has_no_parts_that_are_too_large(
    mocked_broker: tuple[Settings, Producer],
    value: bytes,
    headers_of_record: list[tuple[str, bytes | None]],
    kept: tuple[bytes | None, bytes | None, int],
    end: str,
) -> None:
    """They may not fit into the topic. The reason says which parts are missing."""
    settings, producer = mocked_broker
    producer.list_topics("dead-letters", timeout=10)  # creates it
    record = SimpleNamespace(
        topic=lambda: "loyalty", partition=lambda: 3, offset=lambda: 7, key=lambda: b"k", value=lambda: value,
        headers=lambda: headers_of_record,
    )  # fmt: skip
    asyncio.run(DeadLetterWriter(producer, "dead-letters").write(cast(Message, record), "a reason"))

    (found,) = records_of(settings, "dead-letters", "test")
    assert kept == (found.key(), found.value(), len(found.headers() or ()))
    letter = dead_letter_of(found)
    assert ("loyalty", (3, 7)) == (letter.topic, letter.origin)
    assert letter.reason.startswith("a reason")
    assert letter.reason.endswith(end)
    with pytest.raises(PublishError, match="no value") if kept[1] is None else nullcontext():
        select(Settings(), [letter], [], since=0)


def test_a_dead_letter_waits_while_the_queue_is_full(mocked_broker: tuple[Settings, Producer]) -> None:
    """Dead letters of other endpoints can fill the queue. This must not end all endpoints."""
    settings, _ = mocked_broker
    options = {"bootstrap.servers": settings.kafka_bootstrap_servers, "queue.buffering.max.messages": 1}
    producer = Producer(options | {"linger.ms": 300})
    producer.list_topics("dead-letters", timeout=10)  # creates it
    producer.produce("dead-letters", b"of another endpoint")
    record = SimpleNamespace(
        topic=lambda: "loyalty", partition=lambda: 3, offset=lambda: 7, key=lambda: b"k", value=lambda: b"v",
        headers=list,
    )  # fmt: skip
    asyncio.run(DeadLetterWriter(producer, "dead-letters").write(cast(Message, record), "a reason"))
    assert {b"of another endpoint", b"v"} == {each.value() for each in records_of(settings, "dead-letters", "test")}


def test_a_dead_letter_that_the_broker_refuses_is_an_error() -> None:
    """Otherwise the offset of the notification would be committed, and the notification would be lost."""

    class Refusing:
        def produce(self, *_: object, on_delivery: Callable[[str, None], None], **__: object) -> None:
            self.poll = lambda _: on_delivery("refused", None)

    record = SimpleNamespace(topic=str, partition=int, offset=int, key=bytes, value=bytes, headers=list)
    writer = DeadLetterWriter(cast(Producer, Refusing()), "dead-letters")
    with pytest.raises(PublishError, match="refused"):
        asyncio.run(writer.write(cast(Message, record), "a reason"))


def test_a_cancelled_write_does_not_wait_for_the_broker(mocked_broker: tuple[Settings, Producer]) -> None:
    """The process ends soon after SIGTERM, also while the broker hangs. The next process writes the dead letter."""
    _, producer = mocked_broker
    writer = DeadLetterWriter(producer, "dead-letters")
    record = SimpleNamespace(
        topic=lambda: "topic", partition=int, offset=int, value=bytes, key=bytes, headers=list[tuple[str, bytes]]
    )

    async def cancel_a_write() -> float:
        task = asyncio.create_task(writer.write(cast(Message, record), "a reason"))
        while not len(producer):  # noqa: ASYNC110 - a thread changes it
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic()

    with hanging(producer):
        cancelled = asyncio.run(cancel_a_write())
        assert time.monotonic() - cancelled < DELIVERY_TIMEOUT / 2


def test_dead_letters_do_not_delay_the_look_up_of_a_host(mocked_broker: tuple[Settings, Producer]) -> None:
    """The other notifications of the endpoint need host names. A receiver can refuse hundreds of notifications."""
    _, producer = mocked_broker
    writer = DeadLetterWriter(producer, "dead-letters")
    record = SimpleNamespace(topic=str, partition=int, offset=int, value=bytes, key=bytes, headers=list)

    async def look_up() -> None:
        writes = [asyncio.create_task(writer.write(cast(Message, record), "a reason")) for _ in range(100)]
        while not len(producer):  # noqa: ASYNC110 - librdkafka changes it
            await asyncio.sleep(0.01)
        try:
            async with asyncio.timeout(DELIVERY_TIMEOUT / 2):
                await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)
        finally:
            for write in writes:
                write.cancel()
            await asyncio.gather(*writes, return_exceptions=True)

    with hanging(producer):
        asyncio.run(look_up())
