"""The topic loyalty-programmes: every version of the programme, for every process the same."""

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

# What a publication may take, so that "as soon as possible" is not too soon when the broker has it.
_ON_ITS_WAY = 5_000
_SECOND = 1_000

_SHUT_OUT = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)  # noqa: SLF001 - its only name


@dataclass(frozen=True, slots=True)
class Version:
    """A published version of the programme; times are milliseconds since the epoch.

    Attributes:
        text: the file as it was published.
        rules: what it says.
    """

    number: int
    effective_time: int
    published_time: int
    text: str
    rules: Programme

    @classmethod
    def of(cls, record: Record) -> "Version":
        """The version in a record ProgrammeVersion; raises ProgrammeError for a programme that cannot be."""
        number, effective_time, text = record["Version"], record["EffectiveTime"], record["Programme"]
        rules = replace(parse_programme(text), version=number, effective_time=effective_time)
        return cls(number, effective_time, record["PublishedTime"], text, rules)


def default_programme(settings: Settings) -> Programme:
    """The rules before anything is published: the factor of the settings, everything else as in the Java originals."""
    return Programme(loyalty_factor=settings.loyalty_factor)


def load_programmes(settings: Settings) -> Programmes:
    """Every version that there is now, version 0 among them.

    Raises ProgrammeError where one of them cannot be read: skipping it would decide by the wrong rules. Raises
    PublishError if there is no broker or no such topic.
    """
    return Programmes.of([default_programme(settings), *(version.rules for version in published_versions(settings))])


def published_versions(settings: Settings) -> list[Version]:
    """The published versions by number, 1 first; raises as ``load_programmes`` does."""
    ids = schema_ids(settings)
    consumer = clients.consumer(settings, CLIENT_ID, log_level=0)
    try:
        topic = _topic(consumer, settings)
        found = {version.number: version for version in _read(consumer, topic, ids)}
    except KafkaException as error:
        raise PublishError(f"topic {settings.name_of(topics.LOYALTY_PROGRAMMES)}: {error.args[0].str()}") from error
    finally:
        consumer.close()
    if missing := set(range(1, len(found) + 1)) - set(found):
        raise ProgrammeError(f"topic {topic}: version {min(missing)} is missing among {len(found)} versions")
    return [found[number] for number in sorted(found)]


def _topic(client: Consumer | Producer, settings: Settings) -> str:
    """The topic's name, once it is there."""
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
    """Publish a programme file as the next version; returns it once the broker has it.

    Two publishers never make the same version: each is a transaction of one id, and the broker shuts out the older.

    Args:
        effective_time: from then on it decides; None for as soon as the notice allows.

    Raises ProgrammeError for a bad file, for a time before the latest version's or nearer than the notice (by the
    broker's clock; until the first invoice or command any time will do), and if another publisher was faster; raises
    PublishError if there is no broker or no such topic.
    """
    rules = parse_programme(file)
    identity = f"{settings.name_of(topics.LOYALTY_PROGRAMMES)}-publisher"
    producer = clients.producer(
        settings, CLIENT_ID, **{"transactional.id": identity, "linger.ms": "0", "log_level": "0"}
    )
    topic = _topic(producer, settings)
    try:
        # From here on whoever was publishing before is shut out, and what is read next stays the latest version.
        producer.init_transactions(DELIVERY_TIMEOUT)
        before = published_versions(settings)
        notice = 0 if _nothing_to_decide(settings) else int(settings.programme_notice.total_seconds() * _SECOND)
        version = _next(file, rules, before, effective_time, notice)
        producer.begin_transaction()
        try:
            stamped = _produce(producer, topic, version, schema_ids(settings))
            _refuse_too_soon(version, stamped, notice)
        except (ProgrammeError, PublishError):
            producer.abort_transaction(DELIVERY_TIMEOUT)
            raise
        _commit(producer)
    except KafkaException as error:
        if error.args[0].code() in _SHUT_OUT:
            raise ProgrammeError("another publisher came after this one, which published nothing") from error
        raise PublishError(f"topic {topic}: {error.args[0].str()}; nothing was published") from error
    return version


def _commit(producer: Producer) -> None:
    try:
        producer.commit_transaction(DELIVERY_TIMEOUT)
    except KafkaException as error:
        if error.args[0].code() in _SHUT_OUT:
            raise
        raise PublishError(f"{error.args[0].str()}: whether it is published, `loyalty programme show` tells") from error


def _next(file: str, rules: Programme, before: Sequence[Version], effective_time: int | None, notice: int) -> Version:
    now = time.time_ns() // 1_000_000
    latest = before[-1].effective_time if before else 0
    if effective_time is None:
        # On a full second, for people; without a notice at once, as the very next invoice is meant.
        soon = -(-(now + notice + _ON_ITS_WAY) // _SECOND) * _SECOND if notice else now
        effective_time = max(soon, latest)
    if effective_time < latest:
        raise ProgrammeError(f"version {before[-1].number} takes effect later than that: nothing was published")
    number = len(before) + 1
    return Version(number, effective_time, now, file, replace(rules, version=number, effective_time=effective_time))


def _produce(producer: Producer, topic: str, version: Version, ids: SchemaIds) -> int:
    """Hand the version over; returns the broker's time for it, milliseconds since the epoch."""
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
        # Shut out meanwhile: confluent-kafka sets that exception, and calls on_delivery with it set.
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from error
        raise


def _refuse_too_soon(version: Version, stamped: int, notice: int) -> None:
    """By the broker's clock: it is the one that says which version decides an event."""
    short = stamped + notice - version.effective_time
    if notice and short > 0:
        raise ProgrammeError(
            f"it would take effect {short / _SECOND:.0f} s too soon: every process must know it "
            f"{notice / _SECOND:.0f} s before (LOYALTY_PROGRAMME_NOTICE); nothing was published"
        )


def _nothing_to_decide(settings: Settings) -> bool:
    """Whether no invoice and no command was ever sent: then nobody has decided by other rules yet."""
    consumer = clients.consumer(settings, CLIENT_ID, log_level=0)

    def ends(topic: Topic) -> Iterator[int]:
        name = settings.name_of(topic)
        for partition in find_topic(consumer, name).partitions:
            yield consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=BROKER_TIMEOUT)[1]

    try:
        return not any(end for topic in (topics.POS_INVOICES, topics.LOYALTY_COMMANDS) for end in ends(topic))
    finally:
        consumer.close()
