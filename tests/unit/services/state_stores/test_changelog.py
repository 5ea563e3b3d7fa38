"""The questions to the broker about changelogs, and its answers that are late or missing."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaException
from confluent_kafka.admin import AdminClient

from services.messaging.clients import LOST_SECONDS
from services.state_stores.changelog import EndOffsets, describe_changelogs, watermarks
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


def test_an_end_offset_is_as_old_as_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer can be read much later. Records that came after the question are not below the end offset."""
    moment = [1_000]
    monkeypatch.setattr("services.state_stores.changelog.boot_seconds", lambda: moment[0])
    monkeypatch.setattr("services.state_stores.changelog.now", lambda: moment[0] + 1)
    ends = EndOffsets(cast(AdminClient, Broker(0, 5)))
    assert [] == list(ends.poll([(TOPIC, 0)]))
    moment[0] += 60

    assert [((TOPIC, 0), 5, 1_000, 1_001)] == list(ends.poll([(TOPIC, 0)]))


def test_only_a_lag_counts_records_of_open_transactions() -> None:
    """A restore could not end before the transaction. But a copy without these records is not complete."""
    asked: list[IsolationLevel] = []

    class Noting(Broker):
        def list_offsets(self, *partitions: Any, **options: Any) -> Any:
            asked.append(options["isolation_level"])
            return super().list_offsets(*partitions)

    admin = cast(AdminClient, Noting(0, 5))
    watermarks(admin, [(TOPIC, 0)])
    list(EndOffsets(admin).poll([(TOPIC, 0)]))

    assert [*[IsolationLevel.READ_COMMITTED] * 2, IsolationLevel.READ_UNCOMMITTED] == asked


@pytest.mark.parametrize(
    ("cleanup_policy", "retention_ms", "retention"),
    [
        ("compact,delete", "2851200000", 2_851_200_000),
        ("compact,delete", "-1", -1),
        ("compact", "604800000", -1),  # the default of the broker, which does not count
    ],
)
def test_the_retention_is_that_of_the_topic(cleanup_policy: str, retention_ms: str, retention: int) -> None:
    configuration = {
        "cleanup.policy": cleanup_policy,
        "retention.ms": retention_ms,
        "delete.retention.ms": "86400000",
    }

    class Admin:
        def describe_topics(self, *_: object, **__: object) -> dict[str, "Future[Any]"]:
            return {TOPIC: done(SimpleNamespace(topic_id="id", partitions=[0, 1, 2]))}

        def describe_configs(self, resources: list[Any], **_: object) -> dict[Any, "Future[Any]"]:
            return {
                each: done({name: SimpleNamespace(value=configuration[name]) for name in configuration})
                for each in resources
            }

    changelog = describe_changelogs(cast(AdminClient, Admin()), [TOPIC])[TOPIC]

    assert (3, retention) == (changelog.partitions, changelog.retention)


def done(result: object) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(result)
    return future
