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


NO_INVOICE = "neither a JSON object nor Avro in the Confluent framing (a byte 0 and a schema id)"
OTHER = (
    "not one JSON object: something follows it, a bracket or a name is out of place, a field is given twice, a number "
    "has too many digits, or it is nested too deeply"
)
HALF = "half of a surrogate pair (\\uD800 to \\uDFFF) is no character"
FITTING = '{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1, '


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
        b"": "an empty value",
        b"\x00\x00\x00": NO_INVOICE,
        b"hello": NO_INVOICE,
        header(4_000_000_000) + good[5:]: "unknown schema id 4000000000",
        good[:-3]: "not an Avro PosInvoice of its schema id",
        header(2): "not an Avro PosInvoice of its schema id",
        b'{"InvoiceNumber": "1", "StoreID"': "not JSON: the text ends before the object does, at line 1, column 33",
        b'{"InvoiceNumber": "1",\n "StoreID": S}': "not JSON: the mistake is at line 2, column 13",
        b"{'InvoiceNumber': '1'}": "not JSON: the mistake is at line 1, column 2",
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": "100"}': "TotalAmount is a text, and must be a number",
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1, "New": 1}': None,
        b'{"InvoiceNumber": "1", "StoreID": "S", "InvoiceLineItems": [{}, null]}': (
            "InvoiceLineItems[] is null, and must be an object"
        ),
        b'{"InvoiceNumber": 1, "StoreID": "S", "TotalAmount": 1}': None,
        b"{}": "InvoiceNumber is missing",
        # Claimed lengths without data: two gigabytes of text, two thousand million line items.
        header(2) + b"\x02" + zigzag(2**31 - 1) + b"abc": "not an Avro PosInvoice of its schema id",
        header(2) + b"\x00" * 16 + b"\x02" + zigzag(2**31 - 1): "not an Avro PosInvoice of its schema id",
        good.replace(b"STR1", b"\xff\xfe\xfd\xfc"): "not an Avro PosInvoice of its schema id",
        b'{"InvoiceNumber": "1", "StoreID": "\xe9", "TotalAmount": 1}': "not UTF-8: byte 36 is E9",
        b'{"InvoiceNumber": "\\ud800", "StoreID": "S", "TotalAmount": 1}': HALF,
        b'{"InvoiceNumber": "\\udc00", "StoreID": "S", "TotalAmount": 1}': HALF,
        b'{"InvoiceNumber": "\\ud83d\\ude00", "StoreID": "S", "TotalAmount": 1}': None,
        b'{"InvoiceNumber": "\\\\ud800", "StoreID": "S", "TotalAmount": 1}': None,  # a text with a backslash
        b'{"InvoiceNumber": "\\\\\\ud800", "StoreID": "S", "TotalAmount": 1}': HALF,
        # Spark's parser would read the first object only.
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1}\n{"InvoiceNumber": "2"}': (
            "not JSON: the mistake is at line 2, column 1"
        ),
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1},{"InvoiceNumber": "2"}': OTHER,
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1}]': OTHER,
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1} \n': None,
        b' \n\t{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1}': None,
        b"  hello": NO_INVOICE,
        b'{"InvoiceNumber": "1", "InvoiceNumber": "2", "StoreID": "S", "TotalAmount": 1}': (
            "not clear: the field InvoiceNumber is given twice"
        ),
        f'{FITTING}"DeliveryAddress": {{"City": "A", "State": "B", "City": "C"}}}}'.encode(): (
            "not clear: the field DeliveryAddress.City is given twice"
        ),
        f'{FITTING}"InvoiceLineItems": [{{}}, {{"ItemQty": 1, "ItemQty": 2}}]}}'.encode(): (
            "not clear: the field InvoiceLineItems[].ItemQty is given twice"
        ),
        f'{FITTING}"\\n": 1, "\\n": 2}}'.encode(): OTHER,
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": NaN}': (
            "not JSON: the mistake is at line 1, column 55"
        ),
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1e300}': (
            "TotalAmount is too large: it must be less than 100,000,000,000"
        ),
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1, "NumberOfItems": 3000000000}': (
            "NumberOfItems is out of range: it must be from -2,147,483,648 to 2,147,483,647"
        ),
        f'{FITTING}"CreatedTime": {10**30}}}'.encode(): (
            "CreatedTime is out of range: it must be from -9,223,372,036,854,775,808 to 9,223,372,036,854,775,807"
        ),
        f'{FITTING}"CreatedTime": 1e30}}'.encode(): (
            "CreatedTime is a number with a point, an exponent or more than 38 digits, and must be a whole number"
        ),
        f'{FITTING}"InvoiceLineItems": [{{"ItemQty": {10**30}}}]}}'.encode(): (
            "InvoiceLineItems[].ItemQty is out of range: it must be from -2,147,483,648 to 2,147,483,647"
        ),
        f'{FITTING}"NumberOfItems": {10**50}}}'.encode(): (
            "NumberOfItems is a number with a point, an exponent or more than 38 digits, and must be a whole number"
        ),
        f'{FITTING}"InvoiceLineItems": [{{"TotalValue": 1e300}}]}}'.encode(): (
            "InvoiceLineItems[].TotalValue is too large: it must be less than 100,000,000,000"
        ),
        f'{FITTING}"CESS": 1e400}}'.encode(): "CESS is not a number: it is NaN or infinite",
        b'\xef\xbb\xbf{"InvoiceNumber": "1"}': "a byte order mark is before the JSON: send UTF-8 without it",
        '{"InvoiceNumber": "1"}'.encode("utf-16"): "JSON in UTF-16: send it in UTF-8",
        b' ["InvoiceNumber"]': "a list in JSON, and must be one JSON object",
        b'"1"': "a text in JSON, and must be one JSON object",
        b"12": "a whole number in JSON, and must be one JSON object",
        b"null": "null in JSON, and must be one JSON object",
        # Many escapes, or many brackets: no pattern calls itself for each of them.
        b'{"a": "' + b"\\n" * 400_000 + b'"': (
            "not JSON: the text ends before the object does, at line 1, column 800009"
        ),
        b'{"a": ' + b"[" * 900_000: "not JSON: the text ends before the object does, at line 1, column 900007",
        good + b"\x00": "bytes follow the Avro PosInvoice",
        good + good: "bytes follow the Avro PosInvoice",
        None: "no value",
    }

    rows = check_invoices(as_records(spark, values), IDS).orderBy("offset").collect()

    assert list(values.values()) == [row.reason for row in rows]


MISFITS = {
    "CustomerCardNo": {
        '["5003"]': "a list",
        '{"no": "5003"}': "an object",
        "false": "true or false",
        "1.5": "a number with a point, an exponent or more than 38 digits",
    },
    "InvoiceNumber": {
        "true": "true or false",
        "1.5": "a number with a point, an exponent or more than 38 digits",
        "1e3": "a number with a point, an exponent or more than 38 digits",
    },
    "StoreID": {'["STR1"]': "a list"},
}


def test_a_json_value_of_another_type_is_no_text(spark):
    """Only a text and a whole number become a text. The reason names the field, what it is and what it must be."""
    whole = {"InvoiceNumber": "1", "StoreID": '"STR1"', "CustomerCardNo": "12345678901234567890", "TotalAmount": "2.5"}
    values = {as_json(whole): None, as_json({**whole, "CustomerCardNo": "null"}): None}
    for field, wrong in MISFITS.items():
        for value, found in wrong.items():
            reason = f"{field} is {found}, and must be a text or a whole number"
            values[as_json({**whole, field: value})] = reason
    item = '[{"ItemCode": 7, "ItemPrice": 1, "ItemQty": 2}, {"ItemCode": ["7"]}]'
    values[as_json({**whole, "InvoiceLineItems": item})] = (
        "InvoiceLineItems[].ItemCode is a list, and must be a text or a whole number"
    )
    values[as_json({**whole, "InvoiceLineItems": "{}"})] = "InvoiceLineItems is an object, and must be a list"
    values[as_json({**whole, "DeliveryAddress": '{"City": false}'})] = (
        "DeliveryAddress.City is true or false, and must be a text or a whole number"
    )

    rows = check_invoices(as_records(spark, values), IDS).orderBy("offset").collect()

    assert list(values.values()) == [row.reason for row in rows]
    assert "12345678901234567890" == rows[0].invoice.CustomerCardNo


def as_json(fields):
    """A JSON object of these fields. Their values are JSON already."""
    return ("{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}").encode()


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
