"""The pipeline's columns and the domain's Python agree on every invoice."""

import json
from collections import defaultdict

from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from pyspark.sql import functions as F

from infra.demo import invoice_oracle
from pipelines.columns import avro, returns
from pipelines.columns.decoding import check_invoices
from pipelines.queries.branches import BRANCHES
from schemas import topics
from services.domain.returns import InvoiceKind
from services.domain.validation import RULES, first_violation
from services.messaging.avro import encoder
from tests.support.builders import IDS, purchase
from tests.support.strategies import ANY_INVOICES, FLAWS, VALID_INVOICES, flawed

RECORD_COLUMNS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"


def generated(strategy, count):
    """This number of examples of a strategy, the same in every run."""
    found = []

    @seed(20261121)
    @hypothesis_settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(strategy)
    def collect(example):
        found.append(example)

    collect()
    return found


def as_records(spark, values):
    """Values as Spark reads them from pos-invoices."""
    rows = [(b"STR1", value, "pos-invoices", 0, offset, None) for offset, value in enumerate(values)]
    records = spark.createDataFrame(rows, RECORD_COLUMNS)
    return records.withColumn("headers", F.lit(None).cast(avro.HEADERS_TYPE))


def records_of(topic, checked):
    """Offset to the records of one branch for checked invoices: rows of id, key, value and headers."""
    (branch,) = (each for each in BRANCHES if each.topic is topic)
    record = branch.record(F.col("number"))
    each = F.array_repeat(F.lit(True), F.coalesce(branch.count(), F.lit(0)))
    columns = (getattr(record, name).alias(name) for name in ("id", "key", "value", "headers"))
    rows = (
        checked.withColumns(branch.columns())
        .select("*", F.posexplode(each).alias("number", "_"))
        .orderBy("offset", "number")
    )
    found = defaultdict(list)
    for row in rows.select("offset", *columns).collect():
        found[row.offset].append(row)
    return found


def test_validation_is_the_same(spark):
    """Spark and the domain give the same reason for hundreds of valid and invalid records."""
    valid = generated(VALID_INVOICES, 50)
    examples = generated(ANY_INVOICES, 150) + valid + [flawed(valid[0], flaw) for flaw in FLAWS]
    encode = encoder(topics.POS_INVOICES, IDS)

    checked = check_invoices(as_records(spark, map(encode, examples)), IDS)

    found = [row.reason for row in checked.orderBy("offset").select("reason").collect()]
    assert [first_violation(invoice) for invoice in examples] == found
    assert {None, *(rule.reason for rule in RULES)} == set(found)


def test_flattening_is_the_same(spark):
    """The hadoop branch writes the same records as the oracle of the demo for every valid invoice."""
    examples = generated(VALID_INVOICES, 150)
    checked = check_invoices(as_records(spark, map(encoder(topics.POS_INVOICES, IDS), examples)), IDS)

    found = records_of(topics.HADOOP, checked)

    assert [repr(invoice_oracle.rows(invoice_oracle.as_read(invoice))) for invoice in examples] == [
        repr([invoice_oracle.row(record.value.asDict()) for record in found[offset]]) for offset in range(len(examples))
    ]


def test_returns_are_the_same(spark):
    """Spark and the domain agree on the kind of every valid invoice. Only a return subtracts from the sales.

    If the lines of a return have both signs, its own sign counts.
    """
    examples = generated(VALID_INVOICES, 150)
    checked = check_invoices(as_records(spark, map(encoder(topics.POS_INVOICES, IDS), examples)), IDS)
    invoice = F.col("invoice")
    columns = returns.invoice_kind(invoice).alias("kind"), returns.net_amount(invoice).alias("amount")

    found = [(row.kind, row.amount) for row in checked.orderBy("offset").select(*columns).collect()]

    purchases = [purchase(0, each) for each in examples]
    kinds = [each.invoice_kind for each in purchases]
    mixed = [
        each.original_invoice_number is not None and len({line.value > 0 for line in each.lines}) > 1
        for each in purchases
    ]
    totals = [each["TotalAmount"] for each in examples]
    assert [
        (kind, -abs(total) if kind == InvoiceKind.RETURN and not is_mixed else total)
        for kind, total, is_mixed in zip(kinds, totals, mixed, strict=True)
    ] == found
    assert {*InvoiceKind} == {*kinds}
    assert (InvoiceKind.RETURN, True) in zip(kinds, mixed, strict=True), "some returns take back a discount"


def test_an_invoice_is_the_same_in_json_and_in_avro(spark):
    examples = [invoice for invoice in generated(VALID_INVOICES, 150) if "nan" not in repr(invoice)]
    avro = check_invoices(as_records(spark, map(encoder(topics.POS_INVOICES, IDS), examples)), IDS)
    as_json = check_invoices(as_records(spark, (json.dumps(invoice).encode() for invoice in examples)), IDS)

    from_avro, from_json = (
        [row.invoice for row in checked.orderBy("offset").select("invoice").collect()] for checked in (avro, as_json)
    )

    assert from_avro == from_json
