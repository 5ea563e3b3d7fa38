"""Decoding of values: every known schema, plain JSON and unreadable values."""

import io
import json

import fastavro
import pytest

import schemas
from pipelines.sources.invoices import check_invoices
from schemas import topics
from services.messaging.avro import decoder, encoder, header
from services.messaging.schema_ids import FolderSchemaIds
from tests.spark.test_parity import as_records

IDS = FolderSchemaIds()
INVOICE = {
    "InvoiceNumber": "1",
    "StoreID": "STR1",
    "TotalAmount": 2.5,
    "CustomerType": "NONPRIME",
    "InvoiceLineItems": [{"ItemCode": "458", "ItemPrice": 2.5}],
}


def in_schema(schema_id, record):
    body = io.BytesIO()
    writer = json.loads(schemas.schema_text(schemas.ids()[schema_id]))
    complete = {field["name"]: record.get(field["name"]) for field in writer["fields"]}
    fastavro.schemaless_writer(body, writer, complete)
    return header(schema_id) + body.getvalue()


def zigzag(number):
    """A number as Avro writes its lengths."""
    number, coded = number << 1, bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*coded, number])


@pytest.mark.parametrize("schema_id", sorted(IDS.known(topics.POS_INVOICES)))
def test_old_writers_are_still_read(spark, schema_id):
    """Spark reads an invoice in any former schema like the Python decoder."""
    value = in_schema(schema_id, INVOICE)

    (row,) = check_invoices(as_records(spark, [value]), IDS).collect()

    assert row.reason is None
    assert decoder(topics.POS_INVOICES, IDS)(value) == row.invoice.asDict(recursive=True)


def test_unreadable_values_have_a_reason(spark):
    """Every kind of unreadable value has its own reason and does not stop the others."""
    good = encoder(topics.POS_INVOICES, IDS)(INVOICE)
    values = {
        good: None,
        b"": "not in the Confluent framing: no magic byte 0 and schema id",
        b"\x00\x00\x00": "not in the Confluent framing: no magic byte 0 and schema id",
        b"hello": "not in the Confluent framing: no magic byte 0 and schema id",
        header(4_000_000_000) + good[5:]: "unknown schema id 4000000000",
        good[:-3]: "not an Avro PosInvoice of its schema id",
        header(2): "not an Avro PosInvoice of its schema id",
        b'{"InvoiceNumber": "1", "StoreID"': "not a JSON PosInvoice",
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": "much"}': "not a JSON PosInvoice",
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1, "New": 1}': None,
        b'{"InvoiceNumber": "1", "StoreID": "S", "InvoiceLineItems": [{}, null]}': "not a JSON PosInvoice",
        b'{"InvoiceNumber": 1, "StoreID": "S", "TotalAmount": 1}': None,
        b"{}": "InvoiceNumber is missing",
        # Claimed lengths without data: two gigabytes of text, two thousand million line items.
        header(2) + b"\x02" + zigzag(2**31 - 1) + b"abc": "not an Avro PosInvoice of its schema id",
        header(2) + b"\x00" * 16 + b"\x02" + zigzag(2**31 - 1): "not an Avro PosInvoice of its schema id",
        good.replace(b"STR1", b"\xff\xfe\xfd\xfc"): "not an Avro PosInvoice of its schema id",
        b'{"InvoiceNumber": "1", "StoreID": "\xe9", "TotalAmount": 1}': "not a JSON PosInvoice",
        b'{"InvoiceNumber": "\\ud800", "StoreID": "S", "TotalAmount": 1}': "not a JSON PosInvoice",
        b'{"InvoiceNumber": "\\udc00", "StoreID": "S", "TotalAmount": 1}': "not a JSON PosInvoice",
        b'{"InvoiceNumber": "\\ud83d\\ude00", "StoreID": "S", "TotalAmount": 1}': None,
        # Spark's parser would read the first object only.
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1}\n{"InvoiceNumber": "2"}': "not a JSON PosInvoice",
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1},{"InvoiceNumber": "2"}': "not a JSON PosInvoice",
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1}]': "not a JSON PosInvoice",
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1} \n': None,
        None: "no value",
    }

    rows = check_invoices(as_records(spark, values), IDS).orderBy("offset").collect()

    assert list(values.values()) == [row.reason for row in rows]


def test_topic_without_brace_reads_as_avro_only(spark):
    """A JSON value that is no object is not an invoice."""
    (row,) = check_invoices(as_records(spark, [b'["InvoiceNumber"]']), IDS).collect()

    assert "not in the Confluent framing: no magic byte 0 and schema id" == row.reason


def test_a_time_in_seconds_is_converted(spark):
    """Issue 15, number 1: as milliseconds it would be a day of 1970. Every other time stays as the till sent it."""
    times = [1_595_688_900, 10**9, 10**10 - 1, 10**9 - 1, 10**10, 1_595_688_900_000, 0, -1, None, 2**63 - 1]
    encode = encoder(topics.POS_INVOICES, IDS)
    values = [encode(INVOICE | {"CreatedTime": time}) for time in times]
    values += [json.dumps(INVOICE | {"CreatedTime": time}).encode() for time in times]

    found = [
        row.invoice.CreatedTime for row in check_invoices(as_records(spark, values), IDS).orderBy("offset").collect()
    ]

    assert [1_595_688_900_000, 10**12, 10**13 - 1000, *times[3:]] * 2 == found
