"""The framing of values, and all schemas in which values were ever written."""

import io
import json
from decimal import Decimal
from functools import cache
from pathlib import Path

import fastavro
import fastavro.utils
import pytest
from hypothesis import given
from hypothesis import strategies as st

import schemas
from schemas import topics
from services.domain.validation import RULES, first_violation
from services.messaging.avro import (
    UndecodableError,
    decoder,
    encoder,
    header,
    record_decoder,
    record_encoder,
    same_schema,
)
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from tests.support.builders import IDS, invoice
from tests.support.strategies import VALID_INVOICES

TOPICS_WITH_SCHEMA = [topic for topic in topics.ALL if topic.value]
ON_NO_TOPIC = {"Purchase"}
"""The operators of Spark exchange this record."""

_BALANCE = {
    "CustomerCardNo": "1",
    "TotalLoyaltyPoints": Decimal("43509.58"),
    "Sequence": 429,
    "UpdatedTime": 1,
    "OpenedTime": 0,
    "AvailableLoyaltyPoints": None,
    "PendingLoyaltyPoints": None,
    "ReservedLoyaltyPoints": None,
    "Tier": "",
    "NextExpiryTime": None,
    "NextExpiryPoints": None,
    "Blocked": None,
    "MovedTo": "",
}


def test_values_have_the_framing_of_confluent():
    """The header is magic byte 0 and the schema id in four bytes, big endian."""
    assert [b"\0\0\0\0\1", b"\0\0\0\1\2"] == [header(1), header(258)]


@given(VALID_INVOICES)
def test_encoding_and_decoding_change_no_invoice(invoice):
    received = decoder(topics.POS_INVOICES, IDS)(encoder(topics.POS_INVOICES, IDS)(invoice))

    assert repr(invoice["TotalAmount"]) == repr(received["TotalAmount"])
    assert invoice == {name: received[name] for name in invoice}


def test_points_stay_decimals():
    balance = {**_BALANCE, "AvailableLoyaltyPoints": Decimal("-0.01")}

    received = decoder(topics.LOYALTY_BALANCES, IDS)(encoder(topics.LOYALTY_BALANCES, IDS)(balance))

    assert balance == received
    assert Decimal is type(received["TotalLoyaltyPoints"])


@pytest.mark.parametrize("schema_id", schemas.ids())
def test_every_schema_ever_written_can_be_read(schema_id):
    """A record in any listed schema decodes into the newest schema of its name and keeps its values."""
    path = schemas.ids()[schema_id]
    name = schemas.record_name(path)
    written, value = _written(path)

    received = record_decoder(name, IDS.writer_schema)(value)

    assert schemas.field_names(name) == sorted(received, key=schemas.field_names(name).index)
    assert written == _fields_of(written, received)


ADDED_FIELDS = {
    "Balance-2": {"NextExpiryTime": None, "NextExpiryPoints": None, "Blocked": None, "MovedTo": ""},
    "PosInvoice-2": {"OriginalInvoiceNumber": None},
    "HadoopRecord-1": {"LineKind": None, "OriginalInvoiceNumber": None, "TotalAmount": None},
    "Purchase-1": {"TaxableAmount": None},
}
"""Fields of the record itself. A line of a Purchase has a new field, too."""


@pytest.mark.parametrize("old", ADDED_FIELDS)
def test_a_record_of_an_older_schema_gets_the_defaults_of_new_fields(old):
    """The defaults are an unknown next expiry, an unknown block, and an invoice that is not a return."""
    name = schemas.record_name(f"history/{old}.avsc")
    written, value = _written(f"history/{old}.avsc")

    received = record_decoder(name, IDS.writer_schema)(value)

    expected = {**written, **ADDED_FIELDS[old]}
    assert {*expected} == {*received}
    assert expected == _fields_of(expected, received)


ORIGINALS = "history/PosInvoice-1.avsc"
"""The Java originals used this schema. No reader of this project uses it, because its names have no aliases."""


@pytest.mark.parametrize(
    "path", [path for path in schemas.ids().values() if path.startswith("history/") and path != ORIGINALS]
)
def test_readers_with_an_old_schema_read_new_records(path):
    """A reader with an old schema that knows the new id gets the values of its own fields."""
    name = schemas.record_name(path)
    written, value = _written(f"{name}.avsc")
    yesterday = json.loads(schemas.schema_text(path))

    received = fastavro.schemaless_reader(io.BytesIO(value[5:]), schemas.current(name), yesterday)

    shared = _fields_of(received, written)
    assert shared
    assert shared == _fields_of(written, received)


def _fields_of(record, other):
    """The fields of the other record that the first one has, too, also in their lists and inner records."""
    if isinstance(record, dict) and isinstance(other, dict):
        return {name: _fields_of(record[name], other[name]) for name in record if name in other}
    if isinstance(record, list) and isinstance(other, list):
        return [_fields_of(*each) for each in zip(record, other, strict=True)]
    return other


@cache
def _written(path):
    """A record in a schema of the folder, and its encoded value."""
    writer = fastavro.parse_schema(json.loads(schemas.schema_text(path)))
    body = io.BytesIO()
    fastavro.schemaless_writer(body, writer, next(iter(fastavro.utils.generate_many(writer, 1))))
    (schema_id,) = [number for number, name in schemas.ids().items() if name == path]
    return fastavro.schemaless_reader(io.BytesIO(body.getvalue()), writer), header(schema_id) + body.getvalue()


def test_no_schema_has_the_id_of_a_removed_one():
    """A Schema Registry or a record of a development version can still have these ids, with their schemas."""
    assert not {4, 5, 6, 12, 18, 19, 23} & {*schemas.ids()}


def test_ids_name_every_schema_file_once():
    """Each schema of the folder has exactly one id. It belongs to a topic or stays in Spark."""
    paths = list(schemas.ids().values())

    assert len(set(paths)) == len(paths)
    assert {topic.value for topic in TOPICS_WITH_SCHEMA} | ON_NO_TOPIC == {schemas.record_name(path) for path in paths}
    folder = Path(schemas.__file__).parent
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.avsc")} == set(paths)


@pytest.mark.parametrize("value", [b"", b"{", b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\x02", b"hello world"])
def test_values_without_framing_are_refused(value):
    """A value without the framing raises UndecodableError with a reason."""
    with pytest.raises(UndecodableError, match="framing"):
        decoder(topics.POS_INVOICES, IDS)(value)


def test_unknown_schema_ids_are_named():
    """An unregistered id raises UndecodableError, which names the id."""
    with pytest.raises(UndecodableError, match="unknown schema id 4294967295"):
        decoder(topics.POS_INVOICES, IDS)(header(2**32 - 1) + b"x")


@given(st.binary(max_size=200))
def test_any_bytes_after_a_good_header_give_a_record_or_an_error(body):
    """The only error is UndecodableError."""
    decode = decoder(topics.LOYALTY_BALANCES, IDS)
    try:
        record = decode(header(IDS.writer_id(topics.LOYALTY_BALANCES)) + body)
    except UndecodableError:
        return
    assert schemas.field_names("Balance") == list(record)


@given(VALID_INVOICES, st.integers(0, 400), st.integers(0, 8), st.binary(max_size=8))
def test_a_damaged_invoice_is_an_error_or_a_record_for_validation(invoice, place, cut, put):
    """Bytes of the value are changed, missing or additional."""
    value = encoder(topics.POS_INVOICES, IDS)(invoice)
    place = min(place, len(value))
    try:
        record = decoder(topics.POS_INVOICES, IDS)(value[:place] + put + value[place + cut :])
    except UndecodableError:
        return
    assert schemas.field_names("PosInvoice") == sorted(record, key=schemas.field_names("PosInvoice").index)
    assert first_violation(record) in {None, *(rule.reason for rule in RULES)}


@pytest.mark.parametrize("topic", TOPICS_WITH_SCHEMA, ids=lambda topic: topic.name)
def test_a_value_in_another_records_schema_is_undecodable(topic):
    """A record of another topic raises UndecodableError for every schema."""
    others = [each for each, path in schemas.ids().items() if schemas.record_name(path) != topic.value]
    assert others
    decode = decoder(topic, IDS)
    for schema_id in others:
        with pytest.raises(UndecodableError, match=f"schema id {schema_id}"):
            decode(_written(schemas.ids()[schema_id])[1])


@pytest.mark.parametrize(
    "text",
    [
        *("", "syntax = proto3;", "7", "{}", '{"type": "record"}', '{"type": "no such type"}'),
        json.dumps({"type": "object", "properties": {"x" * 100_000: {"type": "string"}}}),
    ],
)
def test_an_id_without_an_avro_schema_is_undecodable(text):
    """A registry can have schemas that are not Avro. Their values raise UndecodableError, with a short reason."""
    with pytest.raises(UndecodableError, match=r"schema id 9 is no Avro schema, or refers to another one$"):
        record_decoder("Balance", lambda _: text)(header(9) + b"x")


def test_a_primitive_type_in_an_object_is_a_type():
    """Some libraries write {"type": "int"}, or give an int a logical type."""
    schema = json.loads(schemas.schema_text("PosInvoice.avsc"))
    for field in schema["fields"]:
        if field["name"] == "NumberOfItems":
            field["type"] = ["null", {"type": "int", "logicalType": "date"}]
    value = encoder(topics.POS_INVOICES, IDS)(invoice(NumberOfItems=7))
    assert 7 == record_decoder("PosInvoice", lambda _: json.dumps(schema))(value)["NumberOfItems"]


def test_a_registry_that_does_not_answer_is_asked_again():
    """Each value raises the registry's error until the registry answers."""
    requested = []

    def writer_schema(schema_id):
        requested.append(schema_id)
        if len(requested) < 3:
            raise SchemaRegistryUnavailableError("not now")
        return IDS.writer_schema(schema_id)

    decode = record_decoder("Balance", writer_schema)
    value = encoder(topics.LOYALTY_BALANCES, IDS)(_BALANCE)
    for _ in range(2):
        with pytest.raises(SchemaRegistryUnavailableError):
            decode(value)

    assert [_BALANCE, _BALANCE] == [decode(value), decode(value)]
    assert 3 == len(requested)


POINTS = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"doc": "a comment", "default": ""}, True),
        ({"name": "b"}, False),
        ({"type": "bytes"}, False),
        ({"type": {**POINTS, "scale": 3}}, False),
    ],
)
def test_schemas_are_the_same_if_their_records_are(change, is_same):
    """Comments and defaults change no record."""
    field = {"name": "a", "type": POINTS}
    both = [{"type": "record", "name": "R", "fields": [each]} for each in (field, field | change)]
    assert is_same == same_schema(*map(json.dumps, both))


@pytest.mark.parametrize("rest", [b"\0", b"again", b"\0\0\0\0\2"])
def test_bytes_behind_a_record_are_an_error(rest):
    """The bytes may be a second record or damage. No reader may take the first record alone."""
    value = record_encoder("Store", IDS.id_of("Store"))({"StoreID": "S", "Name": "N", "City": "C", "State": "M"})

    with pytest.raises(UndecodableError, match=f"^{len(rest)} bytes follow the Avro Store of schema id"):
        record_decoder("Store", IDS.writer_schema)(value + rest)
