"""Reads dead letters. ``replaying`` publishes their records again."""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from schemas import topics
from services.errors import UserError
from services.messaging import clients, headers
from services.messaging.administration import end_offsets
from services.messaging.publishing import BROKER_TIMEOUT, find_topic
from services.messaging.record_headers import headers_of
from services.messaging.topic_reader import read_range
from services.settings import Settings

CLIENT_ID = "loyalty-dead-letters"

_MOST_RANGES = 1_000


class DeadLettersError(UserError):
    """The dead letters cannot be read. The message says why."""


class RecordPosition(NamedTuple):
    """The partition and offset of a record in a known topic. Positions sort by partition, then by offset."""

    partition: int
    offset: int

    @classmethod
    def of(cls, message: KafkaMessage) -> Self:
        return cls(int(message.partition() or 0), int(message.offset() or 0))

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


def positions_text(positions: Iterable[RecordPosition]) -> str:
    """The sorted positions, with ranges of offsets, for example ``0:17 0:20-42 1:3``.

    The text must fit into one record of the audit trail. So instead of more than 1,000 ranges, it has one range for
    each partition, from the first to the last position.
    """
    ordered = sorted(positions)
    ranges = _ranges(ordered, 1)
    if len(ranges) > _MOST_RANGES:
        ranges = _ranges(ordered, math.inf)
    return " ".join(f"{first}" if first == last else f"{first}-{last.offset}" for first, last in ranges)


def _ranges(ordered: Iterable[RecordPosition], longest_step: float) -> list[tuple[RecordPosition, RecordPosition]]:
    """The first and the last position of each range, in which no two neighbours differ by more than this step."""
    ranges: list[tuple[RecordPosition, RecordPosition]] = []
    for each in ordered:
        first, last = ranges[-1] if ranges else (each, each)
        if ranges and last.partition == each.partition and each.offset - last.offset <= longest_step:
            ranges[-1] = first, each
        else:
            ranges.append((each, each))
    return ranges


class Age(NamedTuple):
    """Sorts dead letters by time, then by position."""

    time: int
    position: RecordPosition


@dataclass(frozen=True, slots=True)
class DeadLetterFacts:
    """What is known about a dead letter, without the original record.

    Attributes:
        position: the position of the dead letter itself.
        time: when the dead letter was written, in milliseconds since the epoch.
        topic: the name on the broker of the topic that the original record came from; None if the headers lack it.
        origin: the position of the original record; None if the headers lack it.
    """

    position: RecordPosition
    time: int
    topic: str | None
    origin: RecordPosition | None
    reason: str

    @property
    def age(self) -> Age:
        return Age(self.time, self.position)


Facts = TypeVar("Facts", bound=DeadLetterFacts)


@dataclass(frozen=True, slots=True)
class DeadLetter(DeadLetterFacts):
    """One record of the topic of dead letters.

    Attributes:
        key, value: the bytes of the original record.
        headers: the headers of the original record.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | bytes | None], ...] = ()

    @property
    def first_time(self) -> int:
        """When the record first became a dead letter. A replayed record can become a dead letter again."""
        with suppress(KeyError, ValueError):  # A till can send this header with any value.
            return min(self.time, int(dict(self.headers)[headers.DEAD_LETTER_FIRST_TIME] or ""))
        return self.time


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters that meet both conditions.

    Attributes:
        reason: a text that the reason contains, in upper or lower case; None accepts every reason.
        positions: positions of dead letters; an empty collection accepts every position.
    """

    reason: str | None = None
    positions: Collection[RecordPosition] = ()

    def __contains__(self, letter: DeadLetter) -> bool:
        if self.reason is not None and self.reason.casefold() not in letter.reason.casefold():
            return False
        return not self.positions or letter.position in self.positions


class DeadLetters:
    """The dead letters that existed when this object was created, and that a filter selects.

    Each iteration reads the topic again, because all the values may not fit into memory.

    A filter with positions selects every dead letter at these positions. A filter without positions drops duplicates:
    it selects the first dead letter of each original record and reason. The reason counts because each webhook that
    refuses a notification writes its own. For a replay, it also selects the first one that the replay does not leave
    out (``since``, see ``replaying.replayed_since``).

    The constructor and each iteration raise DeadLettersError if no broker answers. The constructor raises PublishError
    if the topic does not exist.
    """

    def __init__(
        self, settings: Settings, letter_filter: DeadLetterFilter = DeadLetterFilter(), since: int = 0
    ) -> None:
        self._settings, self._filter, self._since = settings, letter_filter, since
        self._topic = settings.name_of(topics.DEAD_LETTERS)
        self._diagnosis = clients.ConnectionDiagnosis()
        with self._consumer() as consumer:
            self._spans = self._find_spans(consumer)

    def __iter__(self) -> Iterator[DeadLetter]:
        with self._consumer() as consumer:
            records = read_range(consumer, self._topic, self._spans)
            selected = (letter for letter in map(dead_letter_of, records) if letter in self._filter)
            if self._filter.positions:
                yield from selected
            else:
                yield from deduplicated(selected, by_reason=True, since=self._since)

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        on_error = self._diagnosis.on_error
        with closing(clients.bounded_consumer(self._settings, CLIENT_ID, error_cb=on_error)) as consumer:
            try:
                yield consumer
            except KafkaException as error:
                raise DeadLettersError(f"topic {self._topic}: {error.args[0].str()}") from error

    def _find_spans(self, consumer: Consumer) -> dict[int, tuple[int, int]]:
        """The start and the end offset of each partition, except partitions that never had a record."""
        try:
            found = find_topic(consumer, self._topic)
        except KafkaException as error:
            consumer.poll(0)
            raise DeadLettersError(self._diagnosis.explain(self._settings)) from error
        # The admin client retries while a partition has no leader; the consumer does not.
        partitions = [TopicPartition(self._topic, partition) for partition in found.partitions]
        ends = end_offsets(clients.admin(self._settings), partitions, BROKER_TIMEOUT)
        return {each.partition: (OFFSET_BEGINNING, end) for each, end in ends.items() if end > 0}


def newest_of(letters: Iterable[Facts], most: int, before: Age | None = None) -> tuple[Counter[str], list[Facts]]:
    """The number of dead letters for each reason, and the newest dead letters in descending order, at most ``most``.

    It keeps no more than ``most`` dead letters in memory.

    Args:
        before: the result has only dead letters that are older than this one. The reasons count all of them.
    """
    reasons = Counter[str]()

    def counted() -> Iterator[Facts]:
        for letter in letters:
            reasons[letter.reason] += 1
            if before is None or letter.age < before:
                yield letter

    return reasons, heapq.nlargest(most, counted(), key=lambda letter: letter.age)


def deduplicated(letters: Iterable[DeadLetter], *, by_reason: bool = False, since: int = 0) -> Iterator[DeadLetter]:
    """The first dead letter of each original record, or of each original record and reason.

    A pipeline that restarts after a crash can write a second dead letter of the same record. The function keeps all
    dead letters without an origin. It also keeps dead letters with the same origin and different bytes: a topic that
    was deleted and created again uses the same offsets a second time.

    Args:
        by_reason: keep the first dead letter of each reason.
        since: of each record, also keep the first dead letter whose ``first_time`` is not before this time.
    """
    seen = set()
    for letter in letters:
        if letter.topic is not None and letter.origin is not None:
            # Compare hashes, because all the values may not fit into memory.
            content, is_old = hash((letter.key, letter.value)), letter.first_time < since
            identity = (letter.topic, letter.origin, content, by_reason and letter.reason, is_old)
            if identity in seen:
                continue
            seen.add(identity)
        yield letter


def dead_letter_of(message: KafkaMessage) -> DeadLetter:
    """The dead letter of a record of the topic."""
    found = headers_of(message)
    # A record can have several headers with the same name. The writer of the dead letter appended the last one.
    texts = {name: value.decode("utf-8", "replace") for name, value in found if isinstance(value, bytes)}
    return DeadLetter(
        position=RecordPosition.of(message),
        time=message.timestamp()[1],
        topic=texts.get(headers.DEAD_LETTER_TOPIC),
        origin=_origin(texts),
        reason=texts.get(headers.DEAD_LETTER_REASON, ""),
        key=message.key(),
        value=message.value(),
        headers=tuple((name, value) for name, value in found if name not in headers.OF_DEAD_LETTERS),
    )


def _origin(texts: dict[str, str]) -> RecordPosition | None:
    try:
        return RecordPosition(int(texts[headers.DEAD_LETTER_PARTITION]), int(texts[headers.DEAD_LETTER_OFFSET]))
    except (KeyError, ValueError):
        return None
