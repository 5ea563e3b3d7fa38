"""Reads the records of a till from a topic or a file."""

import struct
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from typing import IO

from schemas import topics
from services.conformance.review import Sent
from services.errors import UserError
from services.messaging import clients
from services.messaging.dead_letters import RecordPosition
from services.messaging.publishing import require_broker
from services.messaging.topic_reader import first_offsets, read_range, watermarks_of
from services.settings import Settings

CLIENT_ID = "loyalty-conformance"
_LENGTH = struct.Struct(">i")
_NULL = -1


class Layout(StrEnum):
    """How a file holds values."""

    LINES = "lines"
    LENGTHS = "lengths"
    VALUE = "value"


def of_file(file: IO[bytes], name: str, layout: Layout) -> Iterator[Sent]:
    """The values of a file. Raises UserError if the file ends within a value, or has an impossible length.

    Args:
        name: the name of the file in ``Sent.place``.
        layout: LINES has a value in each line, LENGTHS has the length of each value before it (4 bytes, big-endian,
            -1 for null, as ``kcat -f '%R%s'`` writes it), VALUE is one value.
    """
    match layout:
        case Layout.LINES:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield Sent(f"{name}:{number}", line.rstrip(b"\r\n"))
        case Layout.LENGTHS:
            number = 0
            while length := file.read(_LENGTH.size):
                number += 1
                yield Sent(f"{name}#{number}", _value(file, length, f"{name}#{number}"))
        case Layout.VALUE:
            yield Sent(name, file.read())


def of_topic(settings: Settings, since: int | None) -> Iterator[Sent]:
    """The records that pos-invoices has now, each partition in its order.

    Raises PublishError if no broker answers or the topic does not exist, and KafkaException.

    Args:
        since: return only records that the broker appended then or later, in milliseconds; None returns all.
    """
    require_broker(settings)
    topic = settings.name_of(topics.POS_INVOICES)
    with closing(clients.bounded_consumer(settings, CLIENT_ID)) as consumer:
        spans = watermarks_of(consumer, topic)
        if since is not None:
            for partition, offset in first_offsets(consumer, topic, spans, since).items():
                _, end = spans[partition]
                spans[partition] = (offset if offset >= 0 else end, end)
        for message in read_range(consumer, topic, spans):
            position = RecordPosition.of(message)
            yield Sent(
                place=str(position),
                value=message.value(),
                time=message.timestamp()[1],
                key=message.key(),
                partition=(position.partition, len(spans)),
            )


def _value(file: IO[bytes], length: bytes, place: str) -> bytes | None:
    if len(length) < _LENGTH.size:
        raise UserError(f"{place}: the file ends within a length: write it again, or use --as lines")
    (size,) = _LENGTH.unpack(length)
    if size == _NULL:
        return None
    value = file.read(max(size, 0))
    if size < 0 or len(value) < size:
        raise UserError(f"{place}: no value of {size} bytes follows: write the file again, or use --as lines")
    return value
