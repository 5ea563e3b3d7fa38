"""Messages of recorded invoices from JSON lines."""

import codecs
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import IO, Any, NamedTuple

import schemas
from schemas import topics
from services.domain.json_rules import BEGINS_AS_OBJECT, NotReadableError, read_object
from services.messaging import avro
from services.messaging.schema_ids import SchemaIds

_SCHEMA = schemas.current("PosInvoice")


class Format(StrEnum):
    AVRO = "avro"
    JSON = "json"


class Recorded(NamedTuple):
    """A recorded message.

    Attributes:
        key: the StoreID in UTF-8; None if the line is no invoice or has no StoreID.
        written: the format of the value; None for an unchanged line that is no invoice in JSON.
    """

    key: bytes | None
    value: bytes
    written: Format | None


def recorded(lines: Iterable[bytes], wanted: Format, ids: SchemaIds) -> Iterator[Recorded]:
    """A message for each line that is not blank.

    A line that the pipeline cannot read as an invoice stays unchanged. The pipeline writes it to the dead letters.
    """
    encode = avro.encoder(topics.POS_INVOICES, ids)
    for line in lines:
        if line.strip():
            yield _message(line.rstrip(b"\r\n"), wanted, encode)


def _message(text: bytes, wanted: Format, encode: Any) -> Recorded:
    if not BEGINS_AS_OBJECT.match(text):
        return Recorded(None, text, None)
    try:
        invoice = read_object(text, _SCHEMA)
    except NotReadableError:
        return Recorded(None, text, None)
    key = (invoice["StoreID"] or "").encode() or None
    return Recorded(key, encode(invoice) if wanted is Format.AVRO else text, wanted)


def lines_of(files: Iterable[IO[bytes]]) -> Iterator[bytes]:
    """The lines of all files in their order, without the byte order mark that some programs write first."""
    for file in files:
        yield file.readline().removeprefix(codecs.BOM_UTF8)
        yield from file
