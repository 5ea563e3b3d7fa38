"""Recorded invoices from JSON lines, as the messages a till would have published."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import IO, Any, NamedTuple

import orjson

from schemas import topics
from services.messaging import avro
from services.messaging.schema_ids import SchemaIds


class Format(StrEnum):
    """How invoices are written."""

    AVRO = "avro"
    JSON = "json"


class Written(StrEnum):
    """How one line was written."""

    AVRO = "avro"
    JSON = "json"
    RAW = "raw"


class Recorded(NamedTuple):
    """A recorded message: its key (the StoreID as UTF-8, None where there is none) and how its value is written."""

    key: bytes | None
    value: bytes
    written: Written


def recorded(lines: Iterable[bytes], wanted: Format, ids: SchemaIds) -> Iterator[Recorded]:
    """A message for every line that is not blank.

    A line that is no JSON object is passed on as it is: what cannot be read is for the pipeline to set aside, so that
    what came in is what was good and what is a dead letter. So is an object that is no PosInvoice: it stays JSON.
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
        # fastavro documents no set of errors for a record that is not of the schema; it has raised these.
        except (TypeError, ValueError, AttributeError, OverflowError, KeyError):
            pass
    return Recorded(key, text, Written.JSON)


def lines_of(files: Iterable[IO[bytes]]) -> Iterator[bytes]:
    """The lines of all files, one file after the other."""
    for file in files:
        yield from file
