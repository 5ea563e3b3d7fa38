"""What the pipeline has set aside: reading it, and publishing it again where it came from."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin._listoffsets import OffsetSpec

from schemas import topics
from services.messaging import clients, headers
from services.messaging.administration import offset_in
from services.messaging.publishing import BROKER_TIMEOUT, Publisher, PublishError, connected_producer, find_topic
from services.settings import Settings

CLIENT_ID = "loyalty-dead-letters"

Place = tuple[int, int]
"""Partition and offset."""


class DeadLettersError(RuntimeError):
    """The dead letters cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that was set aside.

    Attributes:
        place: where it lies in the topic of dead letters.
        time: when it was set aside, milliseconds since the epoch.
        topic: where it came from, as named on the broker; None if nobody wrote that down.
        origin: the place it had there.
        key, value: the original ones, untouched.
    """

    place: Place
    time: int
    topic: str | None
    origin: Place | None
    reason: str
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters are meant: those that fit everything that is given.

    Attributes:
        reason: found anywhere in the reason, without case.
        places: where they lie; none given, none is asked for.
    """

    reason: str | None = None
    places: Collection[Place] = ()

    def __contains__(self, letter: DeadLetter) -> bool:
        if self.reason is not None and self.reason.casefold() not in letter.reason.casefold():
            return False
        return not self.places or letter.place in self.places


def read(settings: Settings, selection: Selection = Selection()) -> Iterator[DeadLetter]:
    """The selected dead letters that are there now; later ones are left for the next time.

    One that the pipeline has set aside twice comes once, unless places are asked for: then what lies there.

    Raises DeadLettersError if no broker answers, PublishError if there is no such topic.
    """
    topic = settings.name_of(topics.DEAD_LETTERS)
    refusal = clients.Refusal()
    consumer = clients.consumer(settings, CLIENT_ID, log_level=0, error_cb=refusal.note)
    try:
        ends = _ends(consumer, topic, settings, refusal)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        selected = (letter for letter in map(_letter, _until(consumer, ends)) if letter in selection)
        yield from selected if selection.places else each_once(selected)
    except KafkaException as error:
        raise DeadLettersError(f"topic {topic}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def each_once(letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
    """The first letter of each message; a pipeline that takes up its work after a crash can set one aside again.

    Letters that do not say where they came from are all kept, and so are those that differ: a topic that was made
    anew counts its offsets from 0 again.
    """
    seen = set()
    for letter in letters:
        if letter.topic is not None and letter.origin is not None:
            # The hash in place of the value: they may be many.
            message = (letter.topic, letter.origin, hash((letter.key, letter.value)))
            if message in seen:
                continue
            seen.add(message)
        yield letter


def replay(settings: Settings, letters: Iterable[DeadLetter]) -> int:
    """Publish the original keys and values again, to the topics they came from, each once; returns how many.

    They stay among the dead letters too. Raises PublishError if one cannot be delivered, before anything is sent
    if it has no topic to go back to.
    """
    returning = [(letter, letter.topic) for letter in each_once(letters)]
    if lost := [letter.place for letter, topic in returning if topic is None]:
        raise PublishError(
            f"dead letter {_text(lost[0])} has no header {headers.DEAD_LETTER_TOPIC}: nothing was published"
        )
    destinations = {topic for _, topic in returning if topic is not None}
    with Publisher(connected_producer(settings, CLIENT_ID, sorted(destinations))) as publisher:
        for letter, topic in returning:
            publisher.publish(str(topic), letter.key, letter.value)
    return len(returning)


def _text(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


def _ends(consumer: Consumer, topic: str, settings: Settings, refusal: clients.Refusal) -> dict[int, int]:
    """The offset behind the last record of every partition that ever had any."""
    try:
        found = find_topic(consumer, topic)
    except KafkaException as error:
        consumer.poll(0)
        raise DeadLettersError(refusal.explain(settings)) from error
    # The admin client, unlike the consumer, asks again by itself when it does not know who leads. It needs a name of
    # its own: freed while it waits, it never answers.
    admin = clients.admin(settings)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    places = {TopicPartition(topic, partition): latest for partition in found.partitions}
    answers = admin.list_offsets(places, request_timeout=BROKER_TIMEOUT)
    ends = {place.partition: offset_in(answer) for place, answer in answers.items()}
    return {partition: end for partition, end in ends.items() if end > 0}


def _until(consumer: Consumer, ends: dict[int, int]) -> Iterator[KafkaMessage]:
    """The records before these offsets."""
    left = set(ends)
    while left:
        message = consumer.poll(BROKER_TIMEOUT)
        if message is None:
            raise DeadLettersError(f"the broker gave no record for {BROKER_TIMEOUT:.0f} s")
        error, partition, offset = message.error(), int(message.partition() or 0), int(message.offset() or 0)
        if error is None:
            if offset < ends[partition]:
                yield message
            # The last record can be missing (a transaction's marker): then the end of the partition tells.
            if offset >= ends[partition] - 1:
                left.discard(partition)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
            left.discard(partition)
        else:
            raise KafkaException(error)


def _letter(message: KafkaMessage) -> DeadLetter:
    text = _texts(message)
    return DeadLetter(
        place=(int(message.partition() or 0), int(message.offset() or 0)),
        time=message.timestamp()[1],
        topic=text.get(headers.DEAD_LETTER_TOPIC),
        origin=_origin(text),
        reason=text.get(headers.DEAD_LETTER_REASON, ""),
        key=message.key(),
        value=message.value(),
    )


def _texts(message: KafkaMessage) -> dict[str, str]:
    found = dict(message.headers() or ())
    return {name: value.decode("utf-8", "replace") for name, value in found.items() if isinstance(value, bytes)}


def _origin(text: dict[str, str]) -> Place | None:
    try:
        return int(text[headers.DEAD_LETTER_PARTITION]), int(text[headers.DEAD_LETTER_OFFSET])
    except (KeyError, ValueError):
        return None
