"""Creates the topics of the catalogue, and asks the broker about them."""

import time
from collections.abc import Collection
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from schemas import topics
from schemas.topics import Topic
from services.messaging.clients import admin, consumer
from services.settings import Settings

_LEADER_SECONDS = 30.0
_LEADER_PAUSE_SECONDS = 0.05
_ASK_SECONDS = 5.0


class TopicMismatchError(RuntimeError):
    """A topic exists with another number of partitions than the catalogue says."""


def create_topics(settings: Settings) -> list[str]:
    """Create what is missing of the catalogue and check the rest; returns the names of all topics.

    Raises TopicMismatchError where an existing topic would send keys to other partitions than its readers expect,
    KafkaException where the broker cannot create one, or nobody leads it in time.
    """
    client = admin(settings)
    requests = [
        NewTopic(
            settings.name_of(topic),
            num_partitions=topic.partitions,
            replication_factor=settings.replication_factor,
            config=topic.config,
        )
        for topic in topics.ALL
    ]
    created = set()
    for name, future in client.create_topics(requests).items():
        try:
            future.result()
            created.add(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    _check_partitions(client, settings)
    wait_for_leaders(
        client,
        [
            TopicPartition(request.topic, each)
            for request in requests
            if request.topic in created
            for each in range(request.num_partitions)
        ],
    )
    return [settings.name_of(topic) for topic in topics.ALL]


def _check_partitions(client: AdminClient, settings: Settings) -> None:
    for topic in topics.ALL:
        name = settings.name_of(topic)
        found = len(client.list_topics(name, timeout=30).topics[name].partitions)
        # Zero: the broker has just created the topic and has not told everybody yet.
        if found not in (0, topic.partitions):
            raise TopicMismatchError(f"topic {name} has {found} partitions, the catalogue says {topic.partitions}")


def wait_for_leaders(client: AdminClient, places: Collection[TopicPartition]) -> None:
    """Wait until somebody leads these partitions of new topics; raises KafkaException if that takes too long.

    A broker that has created a topic may say for a moment that there is none, or that nobody leads it.
    """
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + _LEADER_SECONDS
    while places:
        answers = client.list_offsets(dict.fromkeys(places, latest), request_timeout=_ASK_SECONDS)
        try:
            for answer in answers.values():
                listed_offset(answer)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LEADER_PAUSE_SECONDS)
        else:
            return


def listed_offset(answer: Future[Any]) -> int:
    """The offset that ``AdminClient.list_offsets`` found; raises KafkaException where there is none.

    While a partition changes its leader there may be neither an error nor an offset. What librdkafka has in its place
    is no number to reckon with: it would be the end of an empty partition.
    """
    offset: int = answer.result().offset
    if offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, "the broker has no offset at the moment"))
    return offset


class TimestampTypeError(RuntimeError):
    """A topic keeps the time that a producer claims: one clock years ahead would make everybody else's records late."""


def max_record_age(topic: Topic, settings: Settings) -> timedelta | None:
    """How old a record of the topic can get before the broker deletes it, as the broker is configured; None: for ever.

    A segment is deleted once its newest record is past the retention, so its oldest may stay a segment's time longer.
    Raises TimestampTypeError where the broker does not stamp the records itself.
    """
    name = settings.name_of(topic)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    client = admin(settings)  # held until the answer is here: librdkafka drops requests with their client
    (future,) = client.describe_configs([resource], request_timeout=30).values()
    config = future.result()
    if config["message.timestamp.type"].value != "LogAppendTime":
        raise TimestampTypeError(
            f"topic {name} has no message.timestamp.type=LogAppendTime: set it, or create the topic anew"
        )
    retention, segment = (int(config[setting].value) for setting in ("retention.ms", "segment.ms"))
    return None if retention < 0 else timedelta(milliseconds=retention + segment)


def is_empty(topic: Topic, settings: Settings) -> bool:
    """Whether the topic holds no records; compaction and retention may have taken some that it had."""
    name = settings.name_of(topic)
    client = consumer(settings, "loyalty-admin")
    try:
        partitions = client.list_topics(name, timeout=30).topics[name].partitions
        ends = (client.get_watermark_offsets(TopicPartition(name, number), timeout=30) for number in partitions)
        return all(low == high for low, high in ends)
    finally:
        client.close()
