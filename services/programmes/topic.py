"""Reads and publishes versions of the programme in the topic loyalty-programmes."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage

from schemas import topics
from services import clock
from services.domain.formats import short_time_text
from services.domain.programme import DAY, Programme, Programmes
from services.messaging import clients, headers
from services.messaging.avro import Record, UndecodableError, decoder, encoder
from services.messaging.publishing import DELIVERY_TIMEOUT, PublishError, connected_producer
from services.messaging.schema_ids import SchemaIds, SchemaRegistryUnavailableError, schema_ids
from services.messaging.topic_reader import records_of, watermarks_of
from services.programmes.file import ProgrammeError, parse_programme
from services.settings import Settings

CLIENT_ID = "loyalty-programmes"

# A publication takes at most this number of milliseconds. The broker must have the version before the notice begins.
_PUBLICATION_TIME = 5_000
_SECOND = 1_000
_PAUSE_SECONDS = 0.05
# A later time is most probably a typing error, and nobody could change the rules before it.
_FARTHEST_DAYS = 400

_FENCED_CODES = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)  # noqa: SLF001 - the code has no other name


class UncertainPublicationError(PublishError):
    """The broker may have the version, although the publication failed."""


@dataclass(frozen=True, slots=True)
class Version:
    """A published version of the programme. Times are milliseconds since the epoch.

    Attributes:
        text: the published file.
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
        rules = replace(_parse_once(text), version=number, effective_time=effective_time)
        return cls(number, effective_time, record["PublishedTime"], text, rules)


@cache
def _parse_once(text: str) -> Programme:
    """Parses a published file. A large file takes seconds, and the pipeline reads all versions for each new one."""
    return parse_programme(text, is_published=True)


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
    topic = settings.name_of(topics.LOYALTY_PROGRAMMES)
    decode = decoder(topics.LOYALTY_PROGRAMMES, schema_ids(settings))
    found = {}
    for message in records_of(settings, topic, CLIENT_ID):
        try:
            version = Version.of(decode(message.value() or b""))
        except (UndecodableError, ProgrammeError) as wrong:
            raise ProgrammeError(f"topic {topic}, offset {message.offset()}: {wrong}") from wrong
        if message.key() != str(version.number).encode():
            key = f"its key is {message.key()!r}, its version {version.number}"
            raise ProgrammeError(f"topic {topic}, offset {message.offset()}: {key}")
        found[version.number] = version
    if missing := set(range(1, len(found) + 1)) - set(found):
        raise ProgrammeError(f"topic {topic}: version {min(missing)} is missing among {len(found)} versions")
    return [found[number] for number in sorted(found)]


def publish_programme(file: str, settings: Settings, effective_time: int | None = None) -> Version:
    """Publishes a programme file as the next version. Returns the version after readers can read it.

    Two publishers never create the same version: they use the same transactional id, and the broker fences the older
    publisher.

    Args:
        effective_time: the version decides from this time on, in milliseconds since the epoch. None is the first time
            that the notice allows.

    Raises:
        ProgrammeError: the file is not valid, another publisher was faster, or the time is not possible. It must not be
            before 1970, before the time of the latest version, more than 400 days ahead, or nearer than the notice by
            the clock of the broker. If there are no invoices and commands yet, this time needs no notice.
        UncertainPublicationError: the broker did not confirm the commit, or readers do not get the version.
        PublishError: no broker answers, or the topic does not exist. Nothing was published.
    """
    rules = parse_programme(file)
    topic = settings.name_of(topics.LOYALTY_PROGRAMMES)
    options: dict[str, clients.Option] = {"transactional.id": f"{topic}-publisher", "linger.ms": 0}
    producer = connected_producer(settings, CLIENT_ID, [topic], **options)
    try:
        # This call fences other publishers, so nobody adds a version after the next read.
        producer.init_transactions(DELIVERY_TIMEOUT)
        before = published_versions(settings)
        needs_notice = effective_time is None or not _has_no_events(settings)
        notice = settings.programme_notice // timedelta(milliseconds=1) if needs_notice else 0
        version = _next(file, rules, before, effective_time, notice)
        with _transaction(producer):
            append_time = _produce(producer, topic, version, schema_ids(settings))
            _refuse_too_soon(version, append_time, notice)
    except KafkaException as error:
        if error.args[0].code() in _FENCED_CODES:
            raise ProgrammeError(
                "another publisher came after this one, so nothing was published. Publish again"
            ) from error
        raise PublishError(f"topic {topic}: {error.args[0].str()}; nothing was published") from error
    try:
        _await_visible(version, settings)
    except (ProgrammeError, PublishError, SchemaRegistryUnavailableError) as error:
        raise UncertainPublicationError(
            f"version {version.number} is committed, but readers do not get it: {error}; `loyalty programme show` "
            "shows it as soon as they do"
        ) from error
    return version


@contextmanager
def _transaction(producer: Producer) -> Iterator[None]:
    """Commits what the block produces, or aborts after an error in it. Raises UncertainPublicationError."""
    producer.begin_transaction()
    try:
        yield
    except BaseException:
        # Without the abort, readers would wait behind the open transaction. If it fails too, raise the first error.
        with suppress(KafkaException):
            producer.abort_transaction(DELIVERY_TIMEOUT)
        raise
    try:
        producer.commit_transaction(DELIVERY_TIMEOUT)
    except KafkaException as error:
        # The broker can fence a publisher whose version it has: the response to the commit can be lost.
        is_fenced = error.args[0].code() in _FENCED_CODES
        reason = "another publisher came after this one" if is_fenced else error.args[0].str()
        raise UncertainPublicationError(
            f"{reason}: `loyalty programme show` shows whether the version is published"
        ) from error


def _await_visible(version: Version, settings: Settings) -> None:
    """Waits until readers get the version. The broker writes the marker of a transaction after its commit."""
    deadline = time.monotonic() + DELIVERY_TIMEOUT
    while len(published_versions(settings)) < version.number:
        if time.monotonic() > deadline:
            raise PublishError(f"the broker has not shown it for {DELIVERY_TIMEOUT:.0f} s")
        time.sleep(_PAUSE_SECONDS)


def _next(file: str, rules: Programme, before: Sequence[Version], effective_time: int | None, notice: int) -> Version:
    now = clock.now()
    latest = before[-1].effective_time if before else 0
    if effective_time is None:
        # With a notice, use a full second, which is easy to read. Without a notice, the version decides at once, also
        # about the next invoice.
        effective_time = max(_earliest(notice) if notice else now, latest)
    if effective_time < 0:
        raise ProgrammeError(
            "a version cannot take effect before 1970. Nothing was published. Publish with a later time, or without a "
            "time"
        )
    if effective_time < latest:
        raise ProgrammeError(
            f"version {before[-1].number} takes effect at {short_time_text(latest)}, and the next version cannot take "
            "effect before it. Nothing was published. Publish with that time or a later one"
        )
    # The latest version of an older release can have any time. The next version must be able to follow it.
    if effective_time > max(now + _FARTHEST_DAYS * DAY, latest):
        raise ProgrammeError(
            f"{short_time_text(effective_time)} is more than {_FARTHEST_DAYS} days ahead, and no later version could "
            "take effect before it. Nothing was published. Publish with an earlier time"
        )
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
    clients.flush(producer, DELIVERY_TIMEOUT)
    if not outcome:
        raise PublishError(f"topic {topic}: no broker has acknowledged the version; it was not published")
    (error, message) = outcome[0]
    if error is not None:
        raise KafkaException(error)
    return int(message.timestamp()[1])


def _refuse_too_soon(version: Version, append_time: int, notice: int) -> None:
    """Raises ProgrammeError if the notice is too short by the clock of the broker, which also sets the event times."""
    if notice and version.effective_time < append_time + notice:
        raise ProgrammeError(
            f"{short_time_text(version.effective_time)} is too soon: every process must know a version "
            f"{notice / _SECOND:.0f} s before it takes effect (LOYALTY_PROGRAMME_NOTICE). The earliest time is now "
            f"{short_time_text(_earliest(notice))}. Nothing was published. Publish with a later time, or without a "
            "time"
        )


def _earliest(notice: int) -> int:
    """The first full second at which a version that is published now can take effect."""
    return -(-(clock.now() + notice + _PUBLICATION_TIME) // _SECOND) * _SECOND


def _has_no_events(settings: Settings) -> bool:
    """Whether the topics have never had an invoice or a command, so that no process has decided by other rules."""
    sources = (topics.POS_INVOICES, topics.LOYALTY_COMMANDS)
    with closing(clients.bounded_consumer(settings, CLIENT_ID)) as consumer:
        return not any(end for each in sources for _, end in watermarks_of(consumer, settings.name_of(each)).values())
