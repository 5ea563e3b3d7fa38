"""Values of pos-invoices, with the reasons of their dead letters. Spark and Python must give the same reasons."""

import io
import json

import fastavro

import schemas
from schemas import topics
from services.messaging.avro import encoder, header
from tests.support.builders import IDS

INVOICE = {
    "InvoiceNumber": "1",
    "StoreID": "STR1",
    "TotalAmount": 2.5,
    "CustomerType": "NONPRIME",
    "InvoiceLineItems": [{"ItemCode": "458", "ItemPrice": 2.5}],
}

NO_INVOICE = "neither a JSON object nor Avro in the Confluent framing (a byte 0 and a schema id)"
HALF = "half of a surrogate pair (\\uD800 to \\uDFFF) is no character"
FITTING = '{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1, '
"""The start of a JSON object with all fields that validation requires."""


Reasons = dict[bytes | None, str | None]
"""By value: the reason of its dead letter; None if the value is good."""


def zigzag(number: int) -> bytes:
    """A length in the variable-length zig-zag coding of Avro."""
    number, coded = number << 1, bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*coded, number])


def with_large_quantity(schema_id: int) -> bytes:
    """A value in which an int of the schema has more than 32 bits. Only a defective writer makes it."""
    wrong = json.loads(schemas.schema_text(schemas.ids()[schema_id]).replace('"int"', '"long"'))
    body = io.BytesIO()
    invoice = {**INVOICE, "InvoiceLineItems": [{"ItemCode": "458", "ItemQty": 2**31}]}
    fastavro.schemaless_writer(body, fastavro.parse_schema(wrong), invoice)
    return header(schema_id) + body.getvalue()


def reasons() -> Reasons:
    """Every kind of value that cannot be decoded, and some that can."""
    return {
        None: "no value",
        **_framings(),
        **_avro(),
        **_json_syntax(),
        **_json_types(),
        **_numbers(),
        **_fields_twice(),
        **_encodings(),
        **_surrogates(),
    }


def _framings() -> Reasons:
    """Values that are neither JSON nor Avro."""
    return {
        b"": "an empty value",
        b"\x00\x00\x00": NO_INVOICE,
        b"hello": NO_INVOICE,
        b"  hello": NO_INVOICE,
        "hello".encode("utf-16"): NO_INVOICE,
    }


def _avro() -> Reasons:
    good = encoder(topics.POS_INVOICES, IDS)(INVOICE)
    return {
        good: None,
        header(4_000_000_000) + good[5:]: "unknown schema id 4000000000",
        good + b"\x00": "bytes follow the Avro PosInvoice",
        good + good: "bytes follow the Avro PosInvoice",
        **dict.fromkeys(
            (
                good[:-3],
                header(2),
                with_large_quantity(9),
                with_large_quantity(2),
                good.replace(b"STR1", b"\xff\xfe\xfd\xfc"),
                # Large lengths without the data: two gigabytes of text, two thousand million line items.
                header(2) + b"\x02" + zigzag(2**31 - 1) + b"abc",
                header(2) + b"\x00" * 16 + b"\x02" + zigzag(2**31 - 1),
            ),
            "not an Avro PosInvoice of its schema id",
        ),
    }


def _json_syntax() -> Reasons:
    return {
        b'{"InvoiceNumber": "1", "StoreID"': "not JSON: the text ends before the object does, after 32 characters",
        b'{"InvoiceNumber": "1",\n "StoreID": S}': "not JSON: the mistake is at line 2, column 13",
        b"{'InvoiceNumber': '1'}": "not JSON: the mistake is at line 1, column 2",
        # Spark's parser would read the first object only.
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1}\n{"InvoiceNumber": "2"}': (
            "not JSON: the mistake is at line 2, column 1"
        ),
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1},{"InvoiceNumber": "2"}': (
            "not JSON: the mistake is at line 1, column 57"
        ),
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1}]': "not JSON: the mistake is at line 1, column 57",
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1} \n': None,
        b' \n\t{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1}': None,
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": NaN}': "not JSON: NaN is no JSON value",
        # Many escapes or many brackets: no function calls itself for each of them.
        b'{"a": "' + b"\\n" * 400_000 + b'"': (
            "not JSON: the text ends before the object does, after 800,008 characters"
        ),
        b'{"a": ' + b"[" * 900_000: "objects and lists are nested more than 999 levels deep",
    }


def _json_types() -> Reasons:
    return {
        b"{}": "InvoiceNumber is missing",
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1, "New": 1}': None,
        b'{"InvoiceNumber": 1, "StoreID": "S", "TotalAmount": 1}': None,
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": "100"}': "TotalAmount is a text, and must be a number",
        b'{"InvoiceNumber": "1", "StoreID": "S", "InvoiceLineItems": [{}, null]}': (
            "InvoiceLineItems[] is null, and must be an object"
        ),
        b' ["InvoiceNumber"]': "a list in JSON, and must be one JSON object",
        b'"1"': "a text in JSON, and must be one JSON object",
        b"12": "a whole number in JSON, and must be one JSON object",
        b"null": "null in JSON, and must be one JSON object",
    }


def _numbers() -> Reasons:
    return {
        b'{"InvoiceNumber": "1", "StoreID": "S", "TotalAmount": 1e300}': (
            "TotalAmount is too large: it must be between -100,000,000,000 and 100,000,000,000"
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
        f'{FITTING}"NumberOfItems": 1.0}}'.encode(): (
            "NumberOfItems is a number with a point, an exponent or more than 38 digits, and must be a whole number"
        ),
        f'{FITTING}"InvoiceLineItems": [{{"ItemQty": {10**30}}}]}}'.encode(): (
            "InvoiceLineItems[].ItemQty is out of range: it must be from -2,147,483,648 to 2,147,483,647"
        ),
        f'{FITTING}"NumberOfItems": {10**50}}}'.encode(): (
            "NumberOfItems is a number with a point, an exponent or more than 38 digits, and must be a whole number"
        ),
        f'{FITTING}"InvoiceLineItems": [{{"TotalValue": 1e300}}]}}'.encode(): (
            "InvoiceLineItems[].TotalValue is too large: it must be between -100,000,000,000 and 100,000,000,000"
        ),
        f'{FITTING}"CESS": 1e400}}'.encode(): "CESS is too large for a number",
        f'{FITTING}"CESS": {1_001 * "1"}}}'.encode(): "a number has more than 1,000 digits",
    }


def _fields_twice() -> Reasons:
    return {
        b'{"InvoiceNumber": "1", "InvoiceNumber": "2", "InvoiceLineItems": true}': (
            "the field InvoiceNumber is given twice"
        ),
        b'{"InvoiceNumber": "1", "InvoiceNumber": "2", "StoreID": "S", "TotalAmount": 1}': (
            "the field InvoiceNumber is given twice"
        ),
        f'{FITTING}"DeliveryAddress": {{"City": "A", "State": "B", "City": "C"}}}}'.encode(): (
            "the field City is given twice"
        ),
        f'{FITTING}"InvoiceLineItems": [{{}}, {{"ItemQty": 1, "ItemQty": 2}}]}}'.encode(): (
            "the field ItemQty is given twice"
        ),
        f'{FITTING}"\\n": 1, "\\n": 2}}'.encode(): "a field is given twice",
        f'{FITTING}"Tip": {{"5003": 1, "5003": 2}}}}'.encode(): "a field is given twice",
        f'{FITTING}"{50_001 * "n"}": 1}}'.encode(): "a name has more than 50,000 characters",
    }


def _encodings() -> Reasons:
    return {
        b'{"InvoiceNumber": "1", "StoreID": "\xe9", "TotalAmount": 1}': "not UTF-8: byte 36 is E9",
        b'\xef\xbb\xbf{"InvoiceNumber": "1"}': "a byte order mark is before the JSON: send UTF-8 without it",
        **{
            f'{start}{{"StoreID": "\u0939"}}'.encode(encoding): f"JSON in {encoding[:6].upper()}: send it in UTF-8"
            for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
            for start in ("", " \n", "\ufeff")
        },
    }


def _surrogates() -> Reasons:
    return {
        b'{"InvoiceNumber": "\\ud800", "StoreID": "S", "TotalAmount": 1}': HALF,
        b'{"InvoiceNumber": "\\udc00", "StoreID": "S", "TotalAmount": 1}': HALF,
        b'{"InvoiceNumber": "\\ud83d\\ude00", "StoreID": "S", "TotalAmount": 1}': None,
        b'{"InvoiceNumber": "\\\\ud800", "StoreID": "S", "TotalAmount": 1}': None,  # a text with a backslash
        b'{"InvoiceNumber": "\\\\\\ud800", "StoreID": "S", "TotalAmount": 1}': HALF,
        b'{"InvoiceNumber": "\\\\ud83d\\udc00", "StoreID": "S", "TotalAmount": 1}': HALF,
    }


MISFITS = {
    "CustomerCardNo": {
        '["5003"]': "a list",
        '{"no": "5003"}': "an object",
        "false": "true or false",
        "1.5": "a number with a point, an exponent or more than 38 digits",
        "5003.0": "a number with a point, an exponent or more than 38 digits",
        "1000.00": "a number with a point, an exponent or more than 38 digits",
        "12345678901234567890.0": "a number with a point, an exponent or more than 38 digits",
    },
    "InvoiceNumber": {
        "true": "true or false",
        "1.5": "a number with a point, an exponent or more than 38 digits",
        "1e3": "a number with a point, an exponent or more than 38 digits",
    },
    "StoreID": {'["STR1"]': "a list"},
}


def reasons_of_misfits() -> Reasons:
    """Objects with values of the wrong type. A text field accepts only a text or a whole number."""
    whole = {"InvoiceNumber": "1", "StoreID": '"STR1"', "CustomerCardNo": "12345678901234567890", "TotalAmount": "2.5"}
    values: Reasons = {as_json(whole): None, as_json({**whole, "CustomerCardNo": "null"}): None}
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
    return values


def as_json(fields: dict[str, str]) -> bytes:
    """A JSON object of these fields. Their values are JSON already."""
    return ("{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}").encode()
