"""Decoding of values: every known schema, plain JSON and unreadable values."""

import io
import json

import fastavro
import pytest

import schemas
from pipelines.columns.decoding import check_invoices
from schemas import topics
from services.messaging.avro import decoder, encoder, header
from tests.spark.test_parity import as_records
from tests.support.builders import IDS
from tests.support.unreadable import INVOICE, reasons, reasons_of_misfits


def in_schema(schema_id, record):
    body = io.BytesIO()
    writer = json.loads(schemas.schema_text(schemas.ids()[schema_id]))
    complete = {field["name"]: record.get(field["name"]) for field in writer["fields"]}
    fastavro.schemaless_writer(body, writer, complete)
    return header(schema_id) + body.getvalue()


@pytest.mark.parametrize("schema_id", sorted(IDS.known(topics.POS_INVOICES)))
def test_old_writers_are_still_read(spark, schema_id):
    """Spark reads an invoice in any former schema like the Python decoder."""
    value = in_schema(schema_id, INVOICE)

    (row,) = check_invoices(as_records(spark, [value]), IDS).collect()

    assert row.reason is None
    assert decoder(topics.POS_INVOICES, IDS)(value) == row.invoice.asDict(recursive=True)


def test_unreadable_values_have_a_reason(spark):
    """Every kind of unreadable value has its own reason and does not stop the others."""
    values = reasons()

    rows = check_invoices(as_records(spark, values), IDS).orderBy("offset").collect()

    assert list(values.values()) == [row.reason for row in rows]


def test_the_fast_reader_of_avro_is_off(spark):
    """It would never forget a schema that a task has parsed (AVRO-4253)."""
    assert not spark._jvm.org.apache.avro.generic.GenericData.get().isFastReaderEnabled()


def test_a_json_value_of_another_type_is_no_text(spark):
    """Only a text and a whole number become a text. The reason names the field, what it is and what it must be."""
    values = reasons_of_misfits()

    rows = check_invoices(as_records(spark, values), IDS).orderBy("offset").collect()

    assert list(values.values()) == [row.reason for row in rows]
    assert "12345678901234567890" == rows[0].invoice.CustomerCardNo


def test_a_time_in_seconds_is_converted(spark):
    """As milliseconds it would be a day of 1970. Every other time stays as the till sent it."""
    times = [1_595_688_900, 10**9, 10**10 - 1, 10**9 - 1, 10**10, 1_595_688_900_000, 0, -1, None, 2**63 - 1]
    encode = encoder(topics.POS_INVOICES, IDS)
    values = [encode(INVOICE | {"CreatedTime": time}) for time in times]
    values += [json.dumps(INVOICE | {"CreatedTime": time}).encode() for time in times]

    found = [
        row.invoice.CreatedTime for row in check_invoices(as_records(spark, values), IDS).orderBy("offset").collect()
    ]

    assert [1_595_688_900_000, 10**12, 10**13 - 1000, *times[3:]] * 2 == found
