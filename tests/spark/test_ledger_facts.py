"""Facts that were read without Spark: those of the ledger and of the API."""

import resource
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakSet

import pyarrow as pa
import pytest
from pyspark import SparkFiles

from pipelines.reconciliation.facts import from_python
from services.audit.facts import Source
from services.audit.sources import Fact
from services.errors import SettingsError, UserError

ENTRIES, BYTES = 50_000, 1_000


class Card(str):
    """A string that can have weak references."""

    __slots__ = ("__weakref__",)


@pytest.fixture
def context(spark):
    yield SimpleNamespace(spark=spark, pseudonyms=SimpleNamespace(of=lambda card: f"p-{card}"))
    spark.catalog.clearCache()


def test_the_memory_does_not_grow_with_the_ledger(context):
    """Python and the JVM hold only a few pages at once."""
    alive, objects, arrow = WeakSet(), [], []
    arrow_before, heap_before = pa.total_allocated_bytes(), heap(context.spark)

    def ledger():
        for number in range(ENTRIES):
            alive.add(card := Card(number))
            yield Fact(card, None, bytes(BYTES))
            objects.append(len(alive))
            arrow.append(pa.total_allocated_bytes() - arrow_before)

    facts = from_python(context, Source.LEDGER, ledger())
    assert ENTRIES / 2 > max(objects)
    assert ENTRIES * BYTES / 2 > max(arrow)
    assert ENTRIES * BYTES / 2 > heap(context.spark) - heap_before
    assert ENTRIES == facts.count()
    last = ("p-49999", "49999", "ledger", 0, bytes(BYTES))
    assert [last] == [tuple(row) for row in facts.where("card = 49999").collect()]


def heap(spark):
    """The bytes of live objects in the JVM."""
    java = spark._jvm.java.lang
    java.System.gc()
    return java.Runtime.getRuntime().totalMemory() - java.Runtime.getRuntime().freeMemory()


def test_facts_outlive_their_file(context):
    """Python deletes the file with the cards, and the end of the round deletes the copies of Spark."""
    folder = Path(SparkFiles.getRootDirectory())
    before = [*folder.iterdir()]
    facts = from_python(context, Source.LEDGER, [Fact("A", None, b"1"), Fact(None, "p-B", b"2")])
    assert before == [*folder.iterdir()]
    expected = [("p-A", "A", "ledger", 0, b"1"), ("p-B", None, "ledger", 0, b"2")]
    assert expected == sorted(tuple(row) for row in facts.collect())


def test_an_empty_ledger_has_no_facts(context):
    assert [] == from_python(context, Source.LEDGER, iter(())).collect()


def test_a_full_disk_has_a_message(context):
    """A limit on the size of a file stands for a full disk. The JVM is another process and has no such limit."""
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UserError, match=r"^cannot copy the ledger to .*: free space, or set SPARK_LOCAL_DIRS"):
            from_python(context, Source.LEDGER, [Fact(str(each), None, b"1") for each in range(ENTRIES)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def test_spark_on_other_machines_is_refused():
    """They do not have the file."""
    elsewhere = SimpleNamespace(spark=SimpleNamespace(sparkContext=SimpleNamespace(master="spark://other:7077")))
    with pytest.raises(SettingsError, match=r"^LOYALTY_SPARK_MASTER"):
        from_python(elsewhere, Source.LEDGER, [])
