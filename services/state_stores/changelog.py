"""Asks the broker about changelogs: their origin, their offsets, and how long they keep records and tombstones."""

from collections.abc import Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import structlog
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec

from services.clock import boot_seconds, now
from services.messaging import clients
from services.messaging.administration import learn_leaders, listed_offset
from services.state_stores.assignment import ChangelogPartition
from services.state_stores.definition import FORMAT

log = structlog.get_logger(__name__)

_BROKER_SECONDS = 5.0
_ASK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Changelog:
    """A topic from which stores are built.

    Attributes:
        origin: identifies the topic, also after it was deleted and created again, and the format of stored values.
        tombstone_retention: how long a deletion can be read after the log was compacted.
        retention: how long it keeps a record, in milliseconds; -1 for ever.
    """

    origin: str
    partitions: int
    tombstone_retention: timedelta
    retention: int = -1


def describe_changelogs(admin: AdminClient, topics: Collection[str]) -> dict[str, Changelog]:
    """Describe topics by name. Raises KafkaException, also for a topic that does not exist."""
    descriptions = admin.describe_topics(TopicCollection(list(topics)), request_timeout=_BROKER_SECONDS)
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    answers = admin.describe_configs(resources, request_timeout=_BROKER_SECONDS)
    configs = {resource.name: future for resource, future in answers.items()}
    changelogs = {}
    for topic, future in descriptions.items():
        description = future.result()
        origin = f"format {FORMAT} of topic {description.topic_id}"
        config = {name: entry.value for name, entry in configs[topic].result().items()}
        tombstone_retention = timedelta(milliseconds=int(config["delete.retention.ms"]))
        retention = int(config["retention.ms"]) if "delete" in config["cleanup.policy"] else -1
        changelogs[topic] = Changelog(origin, len(description.partitions), tombstone_retention, retention)
    return changelogs


def watermarks(
    admin: AdminClient, partitions: Collection[ChangelogPartition]
) -> dict[ChangelogPartition, tuple[int, int]]:
    """The first offset and the end offset of partitions, without open transactions. Raises KafkaException.

    One request asks for all partitions. It uses the admin client, because a request of the consumer would wait behind a
    fetch, up to half a second for each partition.
    """
    if not partitions:
        return {}
    learn_leaders(admin, {topic for topic, _ in partitions})
    committed = IsolationLevel.READ_COMMITTED
    begins = _list_offsets(admin, partitions, OffsetSpec.earliest(), committed)  # type: ignore[no-untyped-call]
    ends = _list_offsets(admin, partitions, OffsetSpec.latest(), committed)  # type: ignore[no-untyped-call]
    return {each: (listed_offset(begins[each]), listed_offset(ends[each])) for each in partitions}


def _list_offsets(
    admin: AdminClient, partitions: Collection[ChangelogPartition], spec: OffsetSpec, isolation: IsolationLevel
) -> dict[ChangelogPartition, Future[Any]]:
    specs = {TopicPartition(*each): spec for each in partitions}
    futures = admin.list_offsets(specs, isolation_level=isolation, request_timeout=_BROKER_SECONDS)
    return {(each.topic, each.partition): future for each, future in futures.items()}


class EndOffset(NamedTuple):
    """The end offset of a partition at the time of the request or later (see ``StoreTask.note_end_offset``)."""

    partition: ChangelogPartition
    offset: int
    asked_at: float
    asked_time: int


class EndOffsets:
    """Asks the broker for end offsets once a second, and never waits for an answer.

    A consumer knows only the high watermark of its last fetch. After a pause of the process or of the network, the age
    of that watermark is unknown. The age of the end offsets of this class is known.
    """

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._unanswered_since: float | None = None
        self._next_time = 0.0
        self._pending: list[tuple[ChangelogPartition, Future[Any]]] = []
        self._asked_at = 0.0
        self._asked_time = 0

    def poll(self, partitions: Collection[ChangelogPartition]) -> Iterator[EndOffset]:
        """Yield the answers that have arrived since the last call.

        Ask for these partitions again if a second has passed. Raises KafkaException if LOST_SECONDS have passed since
        the first request without an answer. The caller must then use a new admin client.
        """
        if self._pending and all(future.done() for _, future in self._pending):
            answers, self._pending = self._pending, []
            for partition, future in answers:
                try:
                    yield EndOffset(partition, listed_offset(future), self._asked_at, self._asked_time)
                    self._unanswered_since = None
                except KafkaException as error:
                    log.debug("end offset unknown", topic=partition[0], partition=partition[1], error=str(error))
        if self._unanswered_since and boot_seconds() > self._unanswered_since + clients.LOST_SECONDS:
            reason = "the broker does not report the end offsets of the changelogs"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))  # noqa: SLF001 - the code has no other name
        if not self._pending and partitions and boot_seconds() >= self._next_time:
            self._asked_at, self._asked_time = boot_seconds(), now()
            self._next_time = self._asked_at + _ASK_SECONDS
            self._unanswered_since = self._unanswered_since or self._asked_at
            latest, uncommitted = OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED  # type: ignore[no-untyped-call]
            self._pending = list(_list_offsets(self._admin, partitions, latest, uncommitted).items())

    def forget(self) -> None:
        """Drop answers that arrive later. They can belong to a topic that was deleted and created again."""
        self._pending = []
        self._unanswered_since = None
