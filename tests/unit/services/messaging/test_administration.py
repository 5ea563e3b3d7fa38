"""The requests for new topics, and the wait for leaders before a request for offsets."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from schemas import topics
from schemas.topics import Topic
from services.errors import UserError
from services.messaging import administration
from services.messaging.administration import (
    learn_leaders,
    new_topics,
    require_configs,
    require_partitions,
    wrong_limits,
)
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


@pytest.mark.parametrize(
    ("topic", "name", "value"),
    [
        (topics.API_KEYS, "cleanup.policy", "delete"),
        (topics.LOYALTY_BALANCES, "cleanup.policy", "compact,delete"),
        (topics.POS_INVOICES, "cleanup.policy", "compact"),
        (topics.LOYALTY_COMMANDS, "cleanup.policy", "delete,compact"),
        (topics.POS_INVOICES, "message.timestamp.type", "CreateTime"),
    ],
)
def test_a_configuration_that_loses_records_is_refused(topic: Topic, name: str, value: str) -> None:
    """The message names the topic, the setting, both values and the command that changes it."""
    settings, right = Settings(topic_prefix="t-", kafka_bootstrap_servers="kafka:1"), topic.config[name]

    with pytest.raises(UserError) as raised:
        require_configs({topics.STORES: topics.STORES.config, topic: topic.config | {name: value}}, settings)

    message = str(raised.value)
    assert message.startswith(f"topic t-{topic.name} has {name}={value}, and must have {right}. ")
    command = f"--bootstrap-server kafka:1 --alter --topic t-{topic.name} --add-config {name}={right}`"
    assert command in message


def test_all_wrong_settings_of_all_topics_are_named_at_once() -> None:
    """A platform team can have created all topics with the defaults of the brokers."""
    defaults = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}

    with pytest.raises(UserError) as raised:
        require_configs(dict.fromkeys(topics.ALL, defaults), Settings())

    compact = sum(topic.cleanup_policy == "compact" for topic in topics.ALL)
    assert len(topics.ALL) + compact == str(raised.value).count("and must have")


@pytest.mark.parametrize("policy", ["compact", "delete", "delete,compact", ""])
def test_a_policy_that_keeps_more_records_is_accepted(policy: str) -> None:
    """Each topic of the catalogue is accepted, too."""
    require_configs({topic: topic.config for topic in topics.ALL}, Settings())
    require_configs({topics.STORE_SALES: topics.STORE_SALES.config | {"cleanup.policy": policy}}, Settings())


NEVER = {"max.compaction.lag.ms": str(2**63 - 1)}  # the default of Kafka


@pytest.mark.parametrize(
    ("topic", "changes", "wrong"),
    [
        (topics.LOYALTY_BALANCES, {}, []),
        (topics.LOYALTY_BALANCES, NEVER, ["max.compaction.lag.ms"]),
        (topics.LOYALTY_BALANCES, {"max.compaction.lag.ms": "1000"}, []),
        (topics.LOYALTY_DECISIONS, NEVER | {"retention.ms": "1000"}, ["retention.ms", "max.compaction.lag.ms"]),
        (topics.STORE_SALES, NEVER | {"retention.ms": "-1", "max.message.bytes": "1"}, ["max.message.bytes"]),
    ],
)
def test_only_limits_that_keep_too_little_or_erased_cards_are_changed(
    topic: Topic, changes: dict[str, str], wrong: list[str]
) -> None:
    """An operator can let Kafka keep more events, and compact a topic earlier."""
    assert wrong == wrong_limits(topic, topic.config | changes)


def test_a_broker_without_a_limit_of_compaction_is_accepted() -> None:
    """Some brokers have Kafka's protocol and not all of its settings."""
    config = dict(topics.LOYALTY_BALANCES.config)
    del config["max.compaction.lag.ms"]
    assert [] == wrong_limits(topics.LOYALTY_BALANCES, config)


@pytest.mark.parametrize(
    ("spans", "deleted", "empty"),
    [
        ([(0, 0), (0, 0)], False, True),
        ([(0, 0), (0, 1)], False, False),
        ([(0, 5), (1, 5)], True, False),
        ([(7, 7), (0, 0)], True, True),
    ],
)
def test_the_offsets_of_all_partitions_say_what_a_topic_has(
    monkeypatch: pytest.MonkeyPatch, spans: list[tuple[int, int]], *, deleted: bool, empty: bool
) -> None:
    """A query refuses a new checkpoint beside records, and an archive without the oldest ones."""
    monkeypatch.setattr(administration, "consumer", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(administration, "watermarks_of", lambda *_: dict(enumerate(spans)))
    found = [ask(topics.STORES, Settings()) for ask in (administration.has_deleted, administration.is_empty)]
    assert [deleted, empty] == found


class ClusterWithStores:
    """An admin client of a cluster that has the topic stores. It refuses to create another topic."""

    def __init__(self, replicas: int, config: dict[str, str]) -> None:
        self._replicas = replicas
        self._config = config

    def list_topics(self, **_: Any) -> SimpleNamespace:
        partitions = {0: SimpleNamespace(replicas=[*range(self._replicas)])}
        return SimpleNamespace(topics={"t-stores": SimpleNamespace(partitions=partitions)})

    def create_topics(self, requests: list[Any]) -> dict[str, "Future[None]"]:
        exists = KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS))
        refused = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        futures: dict[str, Future[None]] = {request.topic: Future() for request in requests}
        for name, future in futures.items():
            future.set_exception(exists if name == "t-stores" else refused)
        return futures

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, "Future[Any]"]:
        futures: dict[Any, Future[Any]] = {each: Future() for each in resources}
        for future in futures.values():
            future.set_result({name: SimpleNamespace(value=value) for name, value in self._config.items()})
        return futures


def test_no_topic_gets_fewer_replicas_than_the_existing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator can forget the setting in a later call. Without a missing topic, the setting changes nothing."""
    monkeypatch.setattr(administration, "admin", lambda _: ClusterWithStores(3, topics.STORES.config))
    monkeypatch.setattr(topics, "ALL", (topics.STORES,))
    assert ["t-stores"] == administration.create_topics(Settings(topic_prefix="t-"))

    monkeypatch.setattr(topics, "ALL", (topics.STORES, topics.API_KEYS))
    with pytest.raises(UserError, match=r"create t-api-keys with fewer, .*: set LOYALTY_REPLICATION_FACTOR=3$"):
        administration.create_topics(Settings(topic_prefix="t-"))
    with pytest.raises(KafkaException):
        administration.create_topics(Settings(topic_prefix="t-", replication_factor=3))


@pytest.mark.parametrize(
    ("replicas", "in_sync", "warnings"), [(3, "2", 0), (2, "2", 1), (3, "1", 1), (1, "1", 2), (3, None, 0)]
)
def test_topics_with_few_copies_get_a_warning(
    monkeypatch: pytest.MonkeyPatch, replicas: int, in_sync: str | None, warnings: int
) -> None:
    """Topics of release 0.1 have the ``min.insync.replicas`` of the brokers, and the operator can choose to keep it.

    Not every broker with Kafka's protocol has this setting.
    """
    config = topics.STORES.config | ({"min.insync.replicas": in_sync} if in_sync else {})
    monkeypatch.setattr(administration, "admin", lambda _: ClusterWithStores(replicas, config))
    monkeypatch.setattr(topics, "ALL", (topics.STORES,))
    with capture_logs() as logs:
        administration.create_topics(Settings(topic_prefix="t-", replication_factor=3))

    assert [("warning", "t-stores")] * warnings == [(line["log_level"], line["topics"]) for line in logs]
