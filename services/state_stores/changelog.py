"""What the broker says about changelogs: what they are, where they end, how long they remember deletions."""

import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import structlog
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec

from services.boot_clock import boot_seconds
from services.messaging.administration import listed_offset
from services.state_stores.assignment import Place
from services.state_stores.entry import FORMAT

log = structlog.get_logger(__name__)

_BROKER_SECONDS = 5.0
_ASK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Changelog:
    """A topic that stores follow.

    Attributes:
        origin: names the topic, this incarnation of it, and the format of the values that are made of it.
        partitions: their number.
        tombstone_retention: how long a deletion can be read after the log was compacted.
    """

    origin: str
    partitions: int
    tombstone_retention: timedelta


def describe_changelogs(admin: AdminClient, topics: Collection[str]) -> dict[str, Changelog]:
    """Topic name to what it is. Raises KafkaException, also for a topic that does not exist."""
    descriptions = admin.describe_topics(TopicCollection(list(topics)), request_timeout=_BROKER_SECONDS)
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    configs = admin.describe_configs(resources, request_timeout=_BROKER_SECONDS)
    retentions = {
        resource.name: timedelta(milliseconds=int(future.result()["delete.retention.ms"].value))
        for resource, future in configs.items()
    }
    found = {}
    for topic, future in descriptions.items():
        description = future.result()
        origin = f"format {FORMAT} of topic {description.topic_id}"
        found[topic] = Changelog(origin, len(description.partitions), retentions[topic])
    return found


def watermarks(admin: AdminClient, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
    """Where partitions begin and end, without transactions that are still open; raises KafkaException.

    All are asked about together, over connections of the admin's own: on the consumer's the question would stand behind
    a fetch that waits for records, half a second for each partition.
    """
    if not places:
        return {}
    committed = IsolationLevel.READ_COMMITTED
    begins = _asked(admin, places, OffsetSpec.earliest(), committed)  # type: ignore[no-untyped-call]
    ends = _asked(admin, places, OffsetSpec.latest(), committed)  # type: ignore[no-untyped-call]
    return {place: (listed_offset(begins[place]), listed_offset(ends[place])) for place in places}


def _asked(
    admin: AdminClient, places: Collection[Place], spec: OffsetSpec, isolation: IsolationLevel
) -> dict[Place, Future[Any]]:
    specs = {TopicPartition(*place): spec for place in places}
    futures = admin.list_offsets(specs, isolation_level=isolation, request_timeout=_BROKER_SECONDS)
    return {(each.topic, each.partition): future for each, future in futures.items()}


class End(NamedTuple):
    """Where a partition ended when, or after, the broker was asked (see ``StoreTask.note_end``)."""

    place: Place
    offset: int
    asked_at: float
    asked_time: int


class EndOffsets:
    """Asks the broker now and then where partitions end, and never waits for it.

    The consumer's own high watermark comes with what it fetches: after a pause of this process, or of the network, it
    is of any age. Here the age is known.
    """

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._next = 0.0
        self._asked: list[tuple[Place, Future[Any]]] = []
        self._asked_at = 0.0
        self._asked_time = 0

    def poll(self, places: Collection[Place]) -> Iterator[End]:
        """Ask about these partitions if it is time, and give the answers that have come since the last call."""
        if self._asked and all(future.done() for _, future in self._asked):
            asked, self._asked = self._asked, []
            for place, future in asked:
                try:
                    yield End(place, listed_offset(future), self._asked_at, self._asked_time)
                except KafkaException as error:
                    log.debug("an end offset is not known", topic=place[0], partition=place[1], error=str(error))
        if not self._asked and places and boot_seconds() >= self._next:
            self._asked_at, self._asked_time = boot_seconds(), time.time_ns() // 1_000_000
            self._next = self._asked_at + _ASK_SECONDS
            latest, written = OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED  # type: ignore[no-untyped-call]
            self._asked = list(_asked(self._admin, places, latest, written).items())
