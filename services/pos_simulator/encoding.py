"""A fast Avro encoder for simulated invoices.

Many invoices share most of their parts: the store, the card, the address, the lines. The encoder encodes each part once
and then joins the parts of an invoice, because an Avro record is the sequence of its fields. The bytes are the same as
those of ``services.messaging.avro.encoder``.
"""

import io
from collections.abc import Callable
from functools import cache
from operator import itemgetter
from typing import Any

import fastavro

import schemas
from schemas import topics
from services.domain.invoice import LineItem, PosInvoice
from services.messaging import avro
from services.messaging.schema_ids import SchemaIds

_RECURRING_SCALARS = frozenset(
    (
        "CustomerCardNo",
        "NumberOfItems",
        "PaymentMethod",
        "StoreID",
        "PosID",
        "CashierID",
        "CustomerType",
        "DeliveryType",
        "OriginalInvoiceNumber",
    )
)
_NULL = b"\x00"
_NOT_NULL = b"\x02"
_END_OF_BLOCKS = b"\x00"

Part = Callable[[Any], bytes]


def encoder(ids: SchemaIds) -> Callable[[PosInvoice], bytes]:
    """A function that encodes complete invoices as values of pos-invoices. Absent fields must be None.

    It recognises addresses and line items by their Python identity. Invoices must share these objects, and nobody may
    change them.
    """
    schema: Any = fastavro.parse_schema(schemas.current("PosInvoice"))
    names = [field["name"] for field in schema["fields"]]
    parts = [_part(field) for field in schema["fields"]]
    prefix = avro.header(ids.writer_id(topics.POS_INVOICES))
    values = itemgetter(*names)

    def encode(invoice: PosInvoice) -> bytes:
        return prefix + b"".join([part(value) for part, value in zip(parts, values(invoice), strict=True)])

    return encode


def _part(field: Any) -> Part:
    write = _writer(field["type"])
    if field["name"] == "InvoiceLineItems":
        return _lines(field["type"][1]["items"])
    if field["name"] == "DeliveryAddress":
        return _shared(write)
    return cache(write) if field["name"] in _RECURRING_SCALARS else write


def _writer(schema: Any) -> Part:
    def write(value: Any) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, value)
        return buffer.getvalue()

    return write


def _lines(item_schema: Any) -> Part:
    line = _shared(_writer(item_schema))
    count = cache(_writer("long"))

    def write(items: list[LineItem] | None) -> bytes:
        if items is None:
            return _NULL
        if not items:
            return _NOT_NULL + _END_OF_BLOCKS
        return b"".join([_NOT_NULL, count(len(items)), *map(line, items), _END_OF_BLOCKS])

    return write


def _shared(write: Part) -> Part:
    """A function that encodes each record once, and finds its bytes by the identity of the record."""
    # The dictionary keeps the record alive. Otherwise Python could give its identity to another object.
    encoded: dict[int, tuple[Any, bytes]] = {}

    def write_once(record: Any) -> bytes:
        known = encoded.get(id(record))
        if known is None:
            known = encoded[id(record)] = (record, write(record))
        return known[1]

    return write_once
