"""The questions to the broker where changelogs end, and its answers that are late or missing."""

from typing import cast

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaException
from confluent_kafka.admin import AdminClient

from services.messaging.clients import LOST_SECONDS
from services.state_stores.changelog import EndOffsets
from tests.unit.services.state_stores.materialisers import TOPIC, Broker


def test_an_admin_client_without_answers_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client may have lost all brokers, while the consumer still reads. The reader then connects with a new client.
    After an answer without an offset, the end offset is unknown, as after an error.
    """
    now = [1_000.0]
    monkeypatch.setattr("services.state_stores.changelog.boot_seconds", lambda: now[0])
    broker = Broker(0, OFFSET_INVALID)
    ends = EndOffsets(cast(AdminClient, broker))
    for _ in range(int(LOST_SECONDS)):
        assert [] == list(ends.poll([(TOPIC, 0)]))
        now[0] += 1
    broker.answer = (0, 5)
    assert [] == list(ends.poll([(TOPIC, 0)]))
    assert [((TOPIC, 0), 5)] == [(each.partition, each.offset) for each in ends.poll([(TOPIC, 0)])]

    broker.answer = (0, OFFSET_INVALID)
    now[0] += 2 * LOST_SECONDS  # a process that stood still has asked nothing
    assert [] == list(ends.poll([(TOPIC, 0)]))
    now[0] += LOST_SECONDS
    assert [] == list(ends.poll([(TOPIC, 0)]))
    now[0] += 1
    with pytest.raises(KafkaException, match="does not report the end offsets"):
        list(ends.poll([(TOPIC, 0)]))
