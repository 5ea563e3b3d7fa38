"""Creates the topics of the catalogue and reads their settings from the broker."""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import closing
from datetime import timedelta
from typing import Any

import structlog
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.cimpl import NewTopic

from schemas import topics
from schemas.topics import Topic
from services.errors import SettingsError, UserError
from services.messaging.clients import admin, consumer
from services.messaging.topic_reader import watermarks_of
from services.settings import Settings

log = structlog.get_logger(__name__)

_CLEANUP, _TIMES, _IN_SYNC = "cleanup.policy", "message.timestamp.type", "min.insync.replicas"

_LAG = "max.compaction.lag.ms"

_LEADER_SECONDS = 30.0
_LEADER_PAUSE_SECONDS = 0.05
_ASK_SECONDS = 5.0


def create_topics(settings: Settings) -> list[str]:
    """Check the existing topics of the catalogue and create the others. Returns the names of all topics.

    If an older release has created a topic with lower values, the function raises its ``max.message.bytes``, and the
    ``retention.ms`` of a compacted topic. It never lowers them. It lowers a ``max.compaction.lag.ms`` with which the
    records of an erased customer stay too long. It logs a warning if existing topics have fewer replicas, or a smaller
    ``min.insync.replicas``, than new ones.

    Raises UserError if an existing topic has another number of partitions, because readers would look for keys
    in wrong partitions, if its configuration loses records (``require_configs``), or if a new topic would have fewer
    replicas than the existing ones. Raises KafkaException if the broker cannot create a topic, or if a partition gets
    no leader.
    """
    client = admin(settings)
    _check_partitions(client, settings)  # first, so that no new topic gets a wrong number
    requests = new_topics(settings)
    created = set()
    for name, future in client.create_topics(requests).items():
        try:
            future.result()
            created.add(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    wait_for_leaders(
        client,
        [
            TopicPartition(request.topic, each)
            for request in requests
            if request.topic in created
            for each in range(request.num_partitions)
        ],
    )
    if existing := [topic for topic in topics.ALL if settings.name_of(topic) not in created]:
        _check_configs(client, settings, existing)
    return [settings.name_of(topic) for topic in topics.ALL]


def new_topics(settings: Settings) -> list[NewTopic]:
    """The topics of the catalogue, as requests to create them.

    With three or more replicas, a broker acknowledges a record when most replicas have it. The default of Kafka is one
    replica, and an acknowledged record could be lost with the disk of this replica.
    """
    durability = _durability(settings)
    return [
        NewTopic(
            settings.name_of(topic),
            num_partitions=settings.partitions_of(topic),
            replication_factor=settings.replication_factor,
            config=topic.config | durability,
        )
        for topic in topics.ALL
    ]


def _durability(settings: Settings) -> dict[str, str]:
    most = settings.replication_factor // 2 + 1
    return {_IN_SYNC: str(most)} if most < settings.replication_factor else {}


def _check_partitions(client: AdminClient, settings: Settings) -> None:
    found = client.list_topics(timeout=30).topics
    replicas = {}
    for topic in topics.ALL:
        existing = found.get(name := settings.name_of(topic))
        # A broker reports zero partitions for a moment after it has created the topic.
        if existing and existing.partitions:
            require_partitions(topic, len(existing.partitions), settings)
            replicas[name] = min(len(each.replicas) for each in existing.partitions.values())
    missing = [name for topic in topics.ALL if (name := settings.name_of(topic)) not in found]
    if missing and (most := max(replicas.values(), default=0)) > settings.replication_factor:
        raise SettingsError(
            f"existing topics have {most} replicas, and LOYALTY_REPLICATION_FACTOR={settings.replication_factor} would "
            f"create {', '.join(missing)} with fewer, so a failed broker could lose acknowledged records: set "
            f"LOYALTY_REPLICATION_FACTOR={most}"
        )
    if few := [name for name, number in replicas.items() if number < settings.replication_factor]:
        log.warning(
            "these topics have fewer replicas than LOYALTY_REPLICATION_FACTOR, so a failed broker can lose "
            "acknowledged records: add replicas with kafka-reassign-partitions.sh, or set LOYALTY_REPLICATION_FACTOR "
            "to the number that you want",
            topics=", ".join(few),
        )


def require_partitions(topic: Topic, found: int, settings: Settings) -> None:
    """Raise UserError if a topic with this number of partitions should have another number.

    Readers would look for keys in wrong partitions.
    """
    if found != (expected := settings.partitions_of(topic)):
        rule = "must have" if topic.partitions else "LOYALTY_PARTITIONS says"
        remedy = "" if topic.partitions else "set the number with which the topics were created, or "
        raise UserError(
            f"topic {settings.name_of(topic)} has {found} partitions, and {rule} {expected}: {remedy}create the topic "
            "again. This loses its records, so first read "
            "docs/how-to/back-up-and-restore.md#a-topic-has-a-wrong-number-of-partitions"
        )


def require_configs(found: Mapping[Topic, Mapping[str, str]], settings: Settings) -> None:
    """Raise UserError if topics have a configuration with which records are lost or have wrong times.

    A cleanup policy may lack ``compact`` or ``delete`` of the catalogue: Kafka then keeps more records. It must not add
    one: ``delete`` loses the records of quiet customers, and ``compact`` loses all but the latest event of each key.
    """
    wrong = [
        (settings.name_of(topic), name, configs[name], topic.config[name])
        for topic, configs in found.items()
        for name in (_CLEANUP, _TIMES)
        if not {*filter(None, configs[name].split(","))} <= {*topic.config[name].split(",")}
    ]
    if wrong:
        listed = "; ".join(f"topic {each} has {key}={value}, and must have {must}" for each, key, value, must in wrong)
        topic, name, _, must = wrong[0]
        raise UserError(
            f"{listed}. With these settings, Kafka deletes records too early, or takes their times from the clocks of "
            "producers. This command changes the first setting: `kafka-configs.sh --bootstrap-server "
            f"{settings.kafka_bootstrap_servers} --alter --topic {topic} --add-config {name}={must}`. Run it for each "
            "setting that this message names. On a secured Kafka, add `--command-config FILE` with the credentials of "
            "`admin`. Then read docs/how-to/back-up-and-restore.md#a-topic-has-wrong-settings"
        )


def _check_configs(client: AdminClient, settings: Settings, existing: Collection[Topic]) -> None:
    """Refuse settings that lose records, and correct limits that differ from the catalogue.

    The operator sets the retention of topics that are not compacted.
    """
    kind, by_name = ConfigResource.Type.TOPIC, {settings.name_of(topic): topic for topic in existing}
    answers = client.describe_configs([ConfigResource(kind, name) for name in by_name], request_timeout=_LEADER_SECONDS)
    found = {
        by_name[resource.name]: {name: entry.value for name, entry in answer.result().items()}
        for resource, answer in answers.items()
    }
    require_configs(found, settings)
    # Not every broker with Kafka's protocol has this setting.
    wanted = int(_durability(settings).get(_IN_SYNC, 1))
    if low := [
        settings.name_of(topic) for topic, configs in found.items() if int(configs.get(_IN_SYNC, wanted)) < wanted
    ]:
        log.warning(
            "these topics have a min.insync.replicas that is too low, so failed brokers can lose acknowledged records: "
            "set it with kafka-configs.sh (docs/how-to/upgrade.md#require-two-replicas-of-existing-topics)",
            wanted=wanted,
            topics=", ".join(low),
        )
    changed = []
    for topic, configs in found.items():
        entries = [
            ConfigEntry(name, topic.config[name], incremental_operation=AlterConfigOpType.SET)
            for name in wrong_limits(topic, configs)
        ]
        if entries:
            changed.append(ConfigResource(kind, settings.name_of(topic), incremental_configs=entries))
    if changed:
        for altered in client.incremental_alter_configs(changed, request_timeout=_LEADER_SECONDS).values():
            altered.result()


def wrong_limits(topic: Topic, configs: Mapping[str, str]) -> list[str]:
    """The names of the limits in the configuration of a topic that ``create_topics`` changes."""
    names = ["max.message.bytes", *(["retention.ms"] if topic.compacted else [])]
    wrong = [name for name in names if 0 <= int(configs[name]) < int(topic.config[name])]
    # Not every broker with Kafka's protocol has this setting.
    if topic.compaction_lag and int(configs.get(_LAG, 0)) > int(topic.config[_LAG]):
        wrong.append(_LAG)
    return wrong


def wait_for_leaders(client: AdminClient, partitions: Collection[TopicPartition]) -> None:
    """Wait until these partitions of new topics have leaders. Raises KafkaException after a timeout.

    For a moment after the creation, a broker can answer that the topic does not exist or has no leader.
    """
    deadline = time.monotonic() + _LEADER_SECONDS
    while partitions:
        try:
            end_offsets(client, partitions, _ASK_SECONDS)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LEADER_PAUSE_SECONDS)
        else:
            return


def end_offsets(
    client: AdminClient, partitions: Collection[TopicPartition], seconds: float
) -> dict[TopicPartition, int]:
    """Ask the leaders of these partitions for their end offsets. Raises KafkaException, also after the timeout."""
    learn_leaders(client, {each.topic for each in partitions})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    answers = client.list_offsets(dict.fromkeys(partitions, latest), request_timeout=seconds)
    return {partition: listed_offset(answer) for partition, answer in answers.items()}


def learn_leaders(client: AdminClient, names: Collection[str]) -> None:
    """Wait until the client knows the leaders of all partitions of these topics. Raises KafkaException after 5 s.

    Call this before ``AdminClient.list_offsets``. If a leader is not in its cache, librdkafka 2.16 can end the process
    with a segmentation fault: the calling thread registers the request for new metadata and continues to use it, and
    meanwhile another thread can answer and free it (``rd_kafka_topic_partition_list_query_leaders_async``).
    """
    deadline = time.monotonic() + _ASK_SECONDS
    for name in names:
        while not _has_leaders(topic := client.list_topics(name, timeout=_ASK_SECONDS).topics[name]):
            if time.monotonic() > deadline:
                reason = f"a partition of topic {name} has no leader"
                raise KafkaException(topic.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE, reason))
            time.sleep(_LEADER_PAUSE_SECONDS)


def _has_leaders(topic: TopicMetadata) -> bool:
    return bool(topic.partitions) and all(partition.leader >= 0 for partition in topic.partitions.values())


def listed_offset(answer: Future[Any]) -> int:
    """The offset in an answer of ``AdminClient.list_offsets``. Raises KafkaException if it has none.

    While a partition changes its leader, an answer can have neither an error nor an offset. librdkafka then returns
    OFFSET_INVALID.
    """
    offset: int = answer.result().offset
    if offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, "the broker has no offset now"))
    return offset


def topic_ids(of: Collection[Topic], settings: Settings) -> dict[str, str]:
    """The broker's ids of topics, by name. A topic that is deleted and created again has another id.

    Raises KafkaException, also for a topic that does not exist.
    """
    client = admin(settings)  # librdkafka drops the requests of a client that has been freed
    asked = TopicCollection([settings.name_of(topic) for topic in of])
    descriptions = client.describe_topics(asked, request_timeout=_LEADER_SECONDS)
    return {name: str(description.result().topic_id) for name, description in descriptions.items()}


def max_record_age(topic: Topic, settings: Settings) -> timedelta | None:
    """The age that a record can reach before the broker deletes it; None if the broker never deletes it.

    The broker deletes a segment when its newest record is older than the retention. Its oldest record can be older by
    the duration of a segment. Raises SettingsError if the broker does not set the times of the records.
    """
    name = settings.name_of(topic)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    client = admin(settings)  # librdkafka drops the requests of a client that has been freed
    (future,) = client.describe_configs([resource], request_timeout=30).values()
    config = future.result()
    # With the time of one wrong clock, Spark could drop the records of other producers as late.
    if config[_TIMES].value != "LogAppendTime":
        raise SettingsError(f"topic {name} does not have {_TIMES}=LogAppendTime: set it for the topic")
    retention, segment = (int(config[setting].value) for setting in ("retention.ms", "segment.ms"))
    return None if retention < 0 else timedelta(milliseconds=retention + segment)


def has_deleted(topic: Topic, settings: Settings) -> bool:
    """Whether the broker has deleted the oldest records of the topic."""
    with closing(consumer(settings, "loyalty-admin")) as client:
        return any(low > 0 for low, _ in watermarks_of(client, settings.name_of(topic)).values())


def is_empty(topic: Topic, settings: Settings) -> bool:
    """Whether the topic has no records now."""
    with closing(consumer(settings, "loyalty-admin")) as client:
        return all(low == high for low, high in watermarks_of(client, settings.name_of(topic)).values())
