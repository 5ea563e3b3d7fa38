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
    """The format of the values."""

    AVRO = "avro"
    JSON = "json"


class Written(StrEnum):
    """The format in which a message was written. RAW is an unchanged line that is not a PosInvoice in JSON."""

    AVRO = "avro"
    JSON = "json"
    RAW = "raw"


class Recorded(NamedTuple):
    """A recorded message. Its key is the StoreID in UTF-8, or None if the line is no invoice or has no StoreID."""

    key: bytes | None
    value: bytes
    written: Written


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
        return Recorded(None, text, Written.RAW)
    try:
        invoice = read_object(text, _SCHEMA)
    except NotReadableError:
        return Recorded(None, text, Written.RAW)
    key = (invoice["StoreID"] or "").encode() or None
    return Recorded(key, encode(invoice) if wanted is Format.AVRO else text, Written(wanted))


def lines_of(files: Iterable[IO[bytes]]) -> Iterator[bytes]:
    """The lines of all files in their order, without the byte order mark that some programs write first."""
    for file in files:
        yield file.readline().removeprefix(codecs.BOM_UTF8)
        yield from file
