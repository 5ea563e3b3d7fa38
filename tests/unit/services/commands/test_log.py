"""The producer of commands, on the broker that librdkafka contains for tests."""

import asyncio
from collections.abc import Iterator

import pytest

from services.commands.log import KafkaCommandLog, mark_of
from services.messaging.publishing import PublishError
from services.settings import Settings
from tests.support.mock_kafka import fail, mock_broker
from tests.support.waiting import wait_for


@pytest.fixture
def settings() -> Iterator[Settings]:
    with mock_broker() as (settings, _):
        yield settings


def test_a_producer_is_replaced_after_a_fatal_error(settings: Settings) -> None:
    """The failed producer would refuse all further commands."""
    log = KafkaCommandLog(settings)

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
