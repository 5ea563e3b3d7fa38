"""Reads and publishes versions of the programme in the topic loyalty-programmes."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage

from schemas import topics
from schemas.topics import Topic
from services.domain.programme import Programme, Programmes
from services.messaging import clients, headers
from services.messaging.avro import Record, UndecodableError, decoder, encoder
from services.messaging.publishing import BROKER_TIMEOUT, DELIVERY_TIMEOUT, PublishError, find_topic
from services.messaging.schema_ids import SchemaIds, UnknownSchemaIdError, schema_ids
from services.programmes.file import ProgrammeError, parse_programme
from services.settings import Settings

CLIENT_ID = "loyalty-programmes"

# The milliseconds that a publication takes at most. The broker must have the version before the notice begins.
_PUBLICATION_TIME = 5_000
_SECOND = 1_000

_FENCED_CODES = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)  # noqa: SLF001 - its only name


@dataclass(frozen=True, slots=True)
class Version:
    """A published version of the programme. Times are milliseconds since the epoch.

    Attributes:
        text: the published file.
        rules: the rules of the file.
    """

    number: int
    effective_time: int
    published_time: int
    text: str
    rules: Programme

    @classmethod
    def of(cls, record: Record) -> "Version":
        """Returns the version of a record ProgrammeVersion. Raises ProgrammeError if its file is not valid."""
        number, effective_time, text = record["Version"], record["EffectiveTime"], record["Programme"]
        rules = replace(parse_programme(text), version=number, effective_time=effective_time)
        return cls(number, effective_time, record["PublishedTime"], text, rules)


def default_programme(settings: Settings) -> Programme:
    """Returns version 0, which decides until a version is published: the factor of the settings, and default rules."""
    return Programme(loyalty_factor=settings.loyalty_factor)


def load_programmes(settings: Settings) -> Programmes:
    """Returns all versions, with version 0.

    Raises ProgrammeError if a version cannot be read: without it, wrong rules would decide. Raises PublishError if no
    broker answers or the topic does not exist.
    """
    return Programmes.of([default_programme(settings), *(version.rules for version in published_versions(settings))])


def published_versions(settings: Settings) -> list[Version]:
    """Returns the published versions in the order of their numbers. Raises the errors of ``load_programmes``."""
    ids = schema_ids(settings)
    consumer = clients.bounded_consumer(settings, CLIENT_ID, log_level=0)
    try:
        topic = _topic_name(consumer, settings)
        found = {version.number: version for version in _read(consumer, topic, ids)}
    except KafkaException as error:
        raise PublishError(f"topic {settings.name_of(topics.LOYALTY_PROGRAMMES)}: {error.args[0].str()}") from error
    finally:
        consumer.close()
    if missing := set(range(1, len(found) + 1)) - set(found):
        raise ProgrammeError(f"topic {topic}: version {min(missing)} is missing among {len(found)} versions")
    return [found[number] for number in sorted(found)]


def _topic_name(client: Consumer | Producer, settings: Settings) -> str:
    """Returns the name of the topic. Raises PublishError if it does not exist."""
    topic = settings.name_of(topics.LOYALTY_PROGRAMMES)
    try:
        find_topic(client, topic)
    except KafkaException as error:
        raise PublishError(f"no Kafka broker answers at {settings.kafka_bootstrap_servers}") from error
    return topic


def _read(consumer: Consumer, topic: str, ids: SchemaIds) -> Iterator[Version]:
    decode = decoder(topics.LOYALTY_PROGRAMMES, ids)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    while True:
        message = consumer.poll(BROKER_TIMEOUT)
        if message is None:
            raise PublishError(f"topic {topic}: the broker gave no record for {BROKER_TIMEOUT:.0f} s")
        if error := message.error():
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                return
            raise KafkaException(error)
        try:
            version = Version.of(decode(message.value() or b""))
        except (UndecodableError, UnknownSchemaIdError, ProgrammeError) as wrong:
            raise ProgrammeError(f"topic {topic}, offset {message.offset()}: {wrong}") from wrong
        if message.key() != str(version.number).encode():
            key = f"its key is {message.key()!r}, its version {version.number}"
            raise ProgrammeError(f"topic {topic}, offset {message.offset()}: {key}")
        yield version


def publish_programme(file: str, settings: Settings, effective_time: int | None = None) -> Version:
    """Publishes a programme file as the next version, and returns it after the broker has acknowledged it.

    Two publishers never create the same version: they use the same transactional id, and the broker fences the older.

    Args:
        effective_time: the version decides from then on. None is the first time that the notice allows.

    Raises ProgrammeError for a file that is not valid, for a time before that of the latest version, for a time that is
    nearer than the notice by the clock of the broker (without invoices and commands there is no notice), and if another
    publisher was faster. Raises PublishError if no broker answers or the topic does not exist.
    """
    rules = parse_programme(file)
    identity = f"{settings.name_of(topics.LOYALTY_PROGRAMMES)}-publisher"
    producer = clients.producer(
        settings, CLIENT_ID, **{"transactional.id": identity, "linger.ms": "0", "log_level": "0"}
    )
    topic = _topic_name(producer, settings)
    try:
        # This call fences other publishers, so the versions that are read next stay the latest.
        producer.init_transactions(DELIVERY_TIMEOUT)
        before = published_versions(settings)
        notice = 0 if _has_no_events(settings) else int(settings.programme_notice.total_seconds() * _SECOND)
        version = _next(file, rules, before, effective_time, notice)
        producer.begin_transaction()
        try:
            append_time = _produce(producer, topic, version, schema_ids(settings))
            _refuse_too_soon(version, append_time, notice)
        except (ProgrammeError, PublishError):
            producer.abort_transaction(DELIVERY_TIMEOUT)
            raise
        _commit(producer)
    except KafkaException as error:
        if error.args[0].code() in _FENCED_CODES:
            raise ProgrammeError(
                "another publisher came after this one, so nothing was published. Publish again."
            ) from error
        raise PublishError(f"topic {topic}: {error.args[0].str()}; nothing was published") from error
    return version


def _commit(producer: Producer) -> None:
    try:
        producer.commit_transaction(DELIVERY_TIMEOUT)
    except KafkaException as error:
        if error.args[0].code() in _FENCED_CODES:
            raise
        raise PublishError(
            f"{error.args[0].str()}: `loyalty programme show` tells whether the version is published"
        ) from error


def _next(file: str, rules: Programme, before: Sequence[Version], effective_time: int | None, notice: int) -> Version:
    now = time.time_ns() // 1_000_000
    latest = before[-1].effective_time if before else 0
    if effective_time is None:
        # People read full seconds. Without a notice the version decides at once, also the very next invoice.
        soon = -(-(now + notice + _PUBLICATION_TIME) // _SECOND) * _SECOND if notice else now
        effective_time = max(soon, latest)
    if effective_time < latest:
        raise ProgrammeError(f"version {before[-1].number} takes effect later than that, so nothing was published")
    number = len(before) + 1
    return Version(number, effective_time, now, file, replace(rules, version=number, effective_time=effective_time))


def _produce(producer: Producer, topic: str, version: Version, ids: SchemaIds) -> int:
    """Produces the record, and returns its append time in milliseconds since the epoch."""
    record = {
        "Version": version.number,
        "EffectiveTime": version.effective_time,
        "PublishedTime": version.published_time,
        "Programme": version.text,
    }
    key = str(version.number)
    outcome: list[tuple[KafkaError | None, KafkaMessage]] = []
    producer.produce(
        topic,
        key=key.encode(),
        value=encoder(topics.LOYALTY_PROGRAMMES, ids)(record),
        headers=[(name, text.encode()) for name, text in headers.cloud_event(key, "ProgrammeVersion").items()],
        on_delivery=lambda error, message: outcome.append((error, message)),
    )
    _flush(producer)
    if not outcome:
        raise PublishError(f"topic {topic}: no broker has acknowledged the version; it was not published")
    (error, message) = outcome[0]
    if error is not None:
        raise KafkaException(error)
    return int(message.timestamp()[1])


def _flush(producer: Producer) -> None:
    try:
        producer.flush(DELIVERY_TIMEOUT)
    except SystemError as error:
        # The broker fenced this producer. confluent-kafka raises SystemError from the real exception.
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from error
        raise


def _refuse_too_soon(version: Version, append_time: int, notice: int) -> None:
    """Raises ProgrammeError if the notice is too short by the clock of the broker, which also times the events."""
    short = append_time + notice - version.effective_time
    if notice and short > 0:
        raise ProgrammeError(
            f"the version would take effect {short / _SECOND:.0f} s too soon: every process must know it "
            f"{notice / _SECOND:.0f} s before (LOYALTY_PROGRAMME_NOTICE). Nothing was published."
        )


def _has_no_events(settings: Settings) -> bool:
    """Whether the topics have never had an invoice or a command. Then no process has decided by other rules."""
    consumer = clients.bounded_consumer(settings, CLIENT_ID, log_level=0)

    def ends(topic: Topic) -> Iterator[int]:
        name = settings.name_of(topic)
        for partition in find_topic(consumer, name).partitions:
            yield consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=BROKER_TIMEOUT)[1]

    try:
        return not any(end for topic in (topics.POS_INVOICES, topics.LOYALTY_COMMANDS) for end in ends(topic))
    finally:
        consumer.close()
