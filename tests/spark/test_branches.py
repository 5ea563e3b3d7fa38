"""Each branch of the fan-out."""

import pytest
from pyspark.sql import functions as F

from pipelines.columns.decoding import check_invoices
from pipelines.queries.branches import BRANCHES, branch_records, dead_letters
from schemas import topics
from services.messaging.avro import decoder, encoder
from services.messaging.headers import LARGEST_VALUE, TOO_LARGE, WITHOUT_HEADERS
from services.settings import Settings
from tests.spark.test_parity import as_records, records_of
from tests.support.builders import HOME_DELIVERY, IDS, invoice

ITEMS = [{"ItemCode": "a", "ItemQty": 1}, {"ItemCode": "b", "ItemQty": 2}]
TAKEN_AWAY = invoice("T1", "4629185211", 10.0, CashierID="OAS1", InvoiceLineItems=ITEMS)
DELIVERED = {**TAKEN_AWAY, **HOME_DELIVERY, "InvoiceNumber": "D1", "DeliveryType": "Home-Delivery"}


@pytest.fixture(scope="module")
def checked(spark):
    """A home delivery, a takeaway and an unreadable value, after checks."""
    encode = encoder(topics.POS_INVOICES, IDS)
    return check_invoices(as_records(spark, [encode(DELIVERED), encode(TAKEN_AWAY), b"nothing"]), IDS).cache()


def test_shipment_has_whole_home_deliveries(checked):
    """Only the home delivery goes to shipment, with its address."""
    found = records_of(topics.SHIPMENT, checked)

    assert [0] == list(found)
    assert DELIVERED["DeliveryAddress"]["AddressLine"] == found[0][0].value.DeliveryAddress.AddressLine
    assert "D1" == found[0][0].id


def test_hadoop_has_each_line_item_of_valid_invoices(checked):
    """Two line items are two records with different ids."""
    found = records_of(topics.HADOOP, checked)

    assert ["D1#1", "D1#2"] == [record.id for record in found[0]]
    assert ["T1#1", "T1#2"] == [record.id for record in found[1]]
    assert 2 not in found


def test_dead_letters_keep_key_and_value(checked):
    """A dead letter has the original key and value, and headers with origin and reason."""
    (record,) = records_of(topics.DEAD_LETTERS, checked)[2]

    assert (b"STR1", b"nothing") == (record.key, record.value)
    assert {
        "dead_letter_topic": b"pos-invoices",
        "dead_letter_partition": b"0",
        "dead_letter_offset": b"2",
        "dead_letter_reason": b"neither a JSON object nor Avro in the Confluent framing (a byte 0 and a schema id)",
    } == {header.key: bytes(header.value) for header in record.headers}


@pytest.mark.parametrize(
    ("header", "number", "is_kept"), [("x" * 1000, 500, True), ("x" * 1000, 600, False), ("", 100_000, False)]
)
def test_a_dead_letter_has_no_large_key_and_headers(checked, header, number, is_kept):
    """They may not fit into the topic. Many headers without contents are large too."""
    each = F.struct(F.lit(header).alias("key"), F.lit(None).cast("binary").alias("value"))
    large = checked.withColumn("headers", F.array_repeat(each, number))

    for found in (records_of(topics.DEAD_LETTERS, large)[2], dead_letters(large, Settings()).collect()):
        ((key, value, headers),) = ((row.key, row.value, row.headers) for row in found)
        assert (b"STR1" if is_kept else None, b"nothing") == (key, value)
        assert 4 + (number if is_kept else 0) == len(headers)
        assert is_kept != bytes(headers[-1].value).decode().endswith(WITHOUT_HEADERS)


def test_a_dead_letter_has_no_large_key(checked):
    (record,) = records_of(topics.DEAD_LETTERS, checked.withColumn("key", F.lit(bytes(2**19 + 1))))[2]

    assert (None, b"nothing", 4) == (record.key, record.value, len(record.headers))


@pytest.mark.parametrize(
    ("reason", "expected"), [(TOO_LARGE, TOO_LARGE), ("unknown schema id 4711", f"unknown schema id 4711; {TOO_LARGE}")]
)
def test_the_reason_says_that_a_dead_letter_has_no_value(checked, reason, expected):
    """A replay must not publish it as a record without a value."""
    value = F.repeat(F.lit("x"), F.lit(LARGEST_VALUE + 1)).cast("binary")
    large = checked.limit(1).withColumns({"value": value, "reason": F.lit(reason)})

    (row,) = dead_letters(large, Settings()).collect()

    assert (None, expected) == (row.value, bytes(row.headers[-1].value).decode())


def test_all_branches_leave_in_one_frame(checked):
    """One frame has the records of all branches, each with its topic, schema and CloudEvents id."""
    rows = branch_records(BRANCHES, checked, IDS, Settings(topic_prefix="x-")).collect()

    assert {"x-shipment": 1, "x-hadoop": 4, "x-dead-letters": 1} == {
        topic: sum(row.topic == topic for row in rows) for topic in {row.topic for row in rows}
    }
    (shipped,) = (row for row in rows if row.topic == "x-shipment")
    assert DELIVERED.items() <= {**decoder(topics.SHIPMENT, IDS)(bytes(shipped.value)), **_address()}.items()
    headers = {header.key: bytes(header.value) for header in shipped.headers}
    assert (b"D1", b"retail.loyalty.PosInvoice") == (headers["ce_id"], headers["ce_type"])


def test_the_key_is_the_store_also_if_the_till_uses_a_card(checked):
    """Analysts read the keys of hadoop. Only a dead letter keeps the key of the till."""
    card = checked.withColumn("key", F.lit(b"4629185211"))

    rows = branch_records(BRANCHES, card, IDS, Settings()).collect()

    keys = {(row.topic, bytes(row.key)) for row in rows}
    assert {("shipment", b"STR1"), ("hadoop", b"STR1"), ("dead-letters", b"4629185211")} == keys


def test_no_personal_data_reaches_hadoop(checked):
    """A hadoop record contains no card, cashier, address line or contact."""
    rows = [row for row in branch_records(BRANCHES, checked, IDS, Settings()).collect() if row.topic == "hadoop"]

    assert len(rows) == 4
    for secret in (b"4629185211", b"OAS1", b"1 High Street", b"7243866404"):
        assert not any(secret in bytes(row.value) for row in rows)


def _address():
    return {"DeliveryAddress": DELIVERED["DeliveryAddress"], "InvoiceLineItems": DELIVERED["InvoiceLineItems"]}
