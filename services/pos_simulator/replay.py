"""Messages of recorded invoices from JSON lines."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import IO, Any, NamedTuple

import orjson

from schemas import topics
from services.messaging import avro
from services.messaging.schema_ids import SchemaIds


class Format(StrEnum):
    """The format of the values."""

    AVRO = "avro"
    JSON = "json"


class Written(StrEnum):
    """The format in which one line was written."""

    AVRO = "avro"
    JSON = "json"
    RAW = "raw"


class Recorded(NamedTuple):
    """A recorded message. Its key is the StoreID in UTF-8, or None if the line has no StoreID."""

    key: bytes | None
    value: bytes
    written: Written


def recorded(lines: Iterable[bytes], wanted: Format, ids: SchemaIds) -> Iterator[Recorded]:
    """A message for each line that is not blank.

    A line that is not a JSON object stays unchanged, and an object that is not a PosInvoice stays JSON. The pipeline
    writes them to the dead letters.
    """
    encode = avro.encoder(topics.POS_INVOICES, ids)
    for line in lines:
        if line.strip():
            yield _message(line.rstrip(b"\r\n"), wanted, encode)


def _message(text: bytes, wanted: Format, encode: Any) -> Recorded:
    try:
        invoice = orjson.loads(text)
    except orjson.JSONDecodeError:
        return Recorded(None, text, Written.RAW)
    if not isinstance(invoice, dict):
        return Recorded(None, text, Written.RAW)
    store = invoice.get("StoreID")
    key = store.encode() if isinstance(store, str) and store else None
    if wanted is Format.AVRO:
        try:
            return Recorded(key, encode(invoice), Written.AVRO)
        # fastavro does not document its errors for a record that does not fit the schema. These were observed.
        except (TypeError, ValueError, AttributeError, OverflowError, KeyError):
            pass
    return Recorded(key, text, Written.JSON)


def lines_of(files: Iterable[IO[bytes]]) -> Iterator[bytes]:
    """The lines of all files in their order."""
    for file in files:
        yield from file
