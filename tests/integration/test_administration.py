"""The topics of the catalogue on a broker."""

import re
from contextlib import suppress

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from schemas import topics
from schemas.topics import Topic
from services.errors import UserError
from services.messaging.administration import create_topics
from services.messaging.clients import admin
from services.settings import Settings
from tests.support.waiting import wait_for

OLDER = {
    topics.LOYALTY_BALANCES: {"max.compaction.lag.ms": str(2**63 - 1)},
    topics.LOYALTY_DECISIONS: {"retention.ms": "1000", "max.message.bytes": "1048576"},
    topics.LOYALTY_COMMANDS: {"max.message.bytes": "1048576"},
    topics.HADOOP: {"retention.ms": "3600000", "max.message.bytes": "33554432"},
    topics.STORE_SALES: {"retention.ms": "-1"},
}


def test_limits_of_older_topics_are_changed(settings: Settings) -> None:
    """The retention of events belongs to the operator, and -1 keeps records for ever. No retention is lowered."""
    create_topics(settings)
    client = admin(settings)

    def resource(topic: Topic, **configs: str) -> ConfigResource:
        changes = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()
        ]
        return ConfigResource(ConfigResource.Type.TOPIC, settings.name_of(topic), incremental_configs=changes)

    altered = [resource(topic, **configs) for topic, configs in OLDER.items()]
    for future in client.incremental_alter_configs(altered, request_timeout=60).values():
        future.result()

    def limits() -> dict[str, list[str]]:
        described = client.describe_configs([resource(topic) for topic in OLDER], request_timeout=60)
        configs = {asked.name: future.result() for asked, future in described.items()}
        names = ("retention.ms", "max.message.bytes", "max.compaction.lag.ms")
        return {topic: [each[name].value for name in names] for topic, each in configs.items()}

    # A busy broker shows a change some time after it has accepted it.
    wait_for("the older limits", lambda: limits()[settings.name_of(topics.STORE_SALES)][0] == "-1")
    create_topics(settings)

    largest, week, never = str(16 * 2**20), "604800000", str(2**63 - 1)
    expected = {
        settings.name_of(topic): values
        for topic, *values in (
            (topics.LOYALTY_BALANCES, week, largest, week),
            (topics.LOYALTY_DECISIONS, topics.LOYALTY_DECISIONS.config["retention.ms"], largest, week),
            (topics.LOYALTY_COMMANDS, topics.LOYALTY_COMMANDS.config["retention.ms"], largest, never),
            (topics.HADOOP, "3600000", "33554432", never),
            (topics.STORE_SALES, "-1", largest, never),
        )
    }
    wait_for(f"these limits: {expected}", lambda: limits() == expected)


def test_topics_with_the_defaults_of_the_brokers_are_refused_until_they_are_changed(settings: Settings) -> None:
    """Kafka would delete API keys after a week. The message names the values that the topic needs."""
    name, client = settings.name_of(topics.API_KEYS), admin(settings)
    client.create_topics([NewTopic(name, num_partitions=1)])[name].result()
    with pytest.raises(UserError) as raised:
        create_topics(settings)
    named = re.findall(rf"topic {name} has [\w.]+=\w+, and must have \w+", str(raised.value))
    assert [
        f"topic {name} has cleanup.policy=delete, and must have compact",
        f"topic {name} has message.timestamp.type=CreateTime, and must have LogAppendTime",
    ] == named

    changes = [
        ConfigEntry(key, topics.API_KEYS.config[key], incremental_operation=AlterConfigOpType.SET)
        for key in ("cleanup.policy", "message.timestamp.type")
    ]
    (changed,) = client.incremental_alter_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=changes)], request_timeout=60
    ).values()
    changed.result()

    def accepted() -> bool:
        with suppress(UserError):  # a busy broker shows a change some time after it has accepted it
            return name in create_topics(settings)
        return False

    wait_for("the changed settings", accepted)


def test_a_topic_with_added_partitions_is_refused(settings: Settings) -> None:
    """Kafka cannot remove partitions. The message names the page that says what a new topic costs."""
    create_topics(settings)
    name, client = settings.name_of(topics.LOYALTY_BALANCES), admin(settings)
    client.create_partitions([NewPartitions(name, 6)])[name].result()
    wait_for("the new partitions", lambda: len(client.list_topics(name, timeout=30).topics[name].partitions) == 6)
    with pytest.raises(
        UserError, match=f"{name} has 6 partitions, and LOYALTY_PARTITIONS says 3: .*wrong-number-of-partitions"
    ):
        create_topics(settings)


def test_another_number_of_partitions_creates_no_topic(settings: Settings) -> None:
    """Otherwise the new topics would have one number and the existing ones another, and no setting would fit both."""
    name, client = settings.name_of(topics.POS_INVOICES), admin(settings)
    client.create_topics([NewTopic(name, num_partitions=3)])[name].result()
    wait_for("the topic", lambda: name in client.list_topics(timeout=30).topics)
    with pytest.raises(UserError, match=f"{name} has 3 partitions, and LOYALTY_PARTITIONS says 7"):
        create_topics(settings.model_copy(update={"partitions": 7}))
    own = {settings.name_of(topic) for topic in topics.ALL}
    assert {name} == own & set(client.list_topics(timeout=30).topics)
