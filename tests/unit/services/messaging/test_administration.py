"""The requests for new topics, and the wait for leaders before a request for offsets."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from schemas import topics
from services.errors import UserError
from services.messaging import administration
from services.messaging.administration import learn_leaders, new_topics, require_partitions
from services.settings import Settings

NEW, NO_LEADER, READY = {}, {0: 1, 1: -1}, {0: 1, 1: 2}


class Metadata:
    """An admin client. Each request for a topic gets the next answer; the last one repeats."""

    def __init__(self, *answers: dict[int, int], error: KafkaError | None = None) -> None:
        self._left = list(answers)
        self._error = error

    def list_topics(self, name: str, **_: Any) -> SimpleNamespace:
        leaders = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        partitions = {number: SimpleNamespace(leader=leader) for number, leader in leaders.items()}
        return SimpleNamespace(topics={name: SimpleNamespace(partitions=partitions, error=self._error)})

    @property
    def requests_left(self) -> int:
        return len(self._left)


def learn(client: Metadata) -> None:
    learn_leaders(cast(AdminClient, client), ["invoices"])


def test_a_request_waits_until_each_partition_has_a_leader():
    client = Metadata(NEW, NO_LEADER, READY)

    learn(client)

    assert client.requests_left == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, KafkaError.LEADER_NOT_AVAILABLE),
        (KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), KafkaError.UNKNOWN_TOPIC_OR_PART),
    ],
)
def test_the_wait_for_leaders_ends_with_an_error(monkeypatch, error, code):
    monkeypatch.setattr(administration, "_ASK_SECONDS", 0.1)

    with pytest.raises(KafkaException) as raised:
        learn(Metadata(NO_LEADER, error=error))

    assert raised.value.args[0].code() == code


@pytest.mark.parametrize(("replicas", "in_sync"), [(1, None), (2, None), (3, "2"), (4, "3"), (5, "3")])
def test_an_acknowledged_record_is_in_most_replicas(replicas, in_sync):
    """With fewer than three replicas, one lost broker would stop all writers. So the setting of the broker stays."""
    requests = new_topics(Settings(replication_factor=replicas))

    assert [(replicas, in_sync)] * len(topics.ALL) == [
        (each.replication_factor, each.config.get("min.insync.replicas")) for each in requests
    ]


def test_the_setting_is_the_number_of_partitions_of_topics_without_a_fixed_number():
    requests = {request.topic: request.num_partitions for request in new_topics(Settings(partitions=7))}

    assert {1, 7} == set(requests.values())
    assert [1, 7] == [requests[topic.name] for topic in (topics.LOYALTY_PROGRAMMES, topics.LOYALTY_BALANCES)]


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        (topics.LOYALTY_BALANCES, "and LOYALTY_PARTITIONS says 7: set the number with which the topics were created"),
        (topics.STORES, "and must have 1: create the topic again"),
    ],
)
def test_another_number_of_partitions_is_refused(topic, says):
    """The setting can be wrong only for a topic that uses it."""
    settings = Settings(topic_prefix="t-", partitions=7)
    require_partitions(topic, settings.partitions_of(topic), settings)
    with pytest.raises(UserError, match=f"^topic t-{topic.name} has 3 partitions, {says}"):
        require_partitions(topic, 3, settings)
