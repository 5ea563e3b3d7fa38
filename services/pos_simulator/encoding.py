"""Encodes the invoices of a simulated day in half the time of the plain encoder."""

from collections.abc import Callable
from functools import cache

import schemas
from schemas import topics
from services.domain.invoice import LineItem, PosInvoice
from services.messaging import avro
from services.messaging.schema_ids import SchemaIds

_NOT_NULL = b"\x02"
_END_OF_LINES = b"\x00"


def encoder(ids: SchemaIds) -> Callable[[PosInvoice], bytes]:
    """A function that encodes invoices of one day as ``avro.encoder`` does. Each invoice must have a line.

    The lines take more than half of the time, so it encodes equal lines once. It identifies a line by its article and
    quantity: on one day, an article has one price.
    """
    schema = schemas.current("PosInvoice")
    fields = schema["fields"]
    place = [field["name"] for field in fields].index("InvoiceLineItems")
    before, after = (avro.value_encoder({**schema, "fields": part}) for part in (fields[:place], fields[place + 1 :]))
    encode_line = avro.value_encoder(fields[place]["type"][1]["items"])
    encode_count = cache(avro.value_encoder("long"))
    start = avro.header(ids.writer_id(topics.POS_INVOICES))
    encoded: dict[tuple[str | None, int | None], bytes] = {}

    def line(item: LineItem) -> bytes:
        key = item["ItemCode"], item["ItemQty"]
        if key not in encoded:
            encoded[key] = encode_line(item)
        return encoded[key]

    def encode(invoice: PosInvoice) -> bytes:
        items = invoice["InvoiceLineItems"] or []
        lines = (_NOT_NULL, encode_count(len(items)), *map(line, items), _END_OF_LINES)
        return b"".join((start, before(invoice), *lines, after(invoice)))

    return encode
