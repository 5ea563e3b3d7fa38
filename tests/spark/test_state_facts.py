"""The audit's copy of the accounts in Spark's state."""

import shutil
from types import SimpleNamespace

import pytest

from pipelines.reconciliation import facts
from services.audit.sources import UnreadableError
from services.pseudonyms import Pseudonyms


@pytest.fixture
def context(spark, tmp_path, monkeypatch):
    """The context of an audit. The folder ``state`` stands for the state of a query."""
    columns = "user_map_key struct<card: string>, user_map_value struct<account: binary>"
    rows = spark.createDataFrame([(("A",), (b"\x01account",))], columns)
    rows.write.parquet(str(tmp_path / "state"))
    monkeypatch.setattr(facts, "state_variable", lambda *_: spark.read.parquet(str(tmp_path / "state")))
    yield SimpleNamespace(spark=spark, pseudonyms=Pseudonyms(b"key"))
    spark.catalog.clearCache()


def test_a_live_query_may_delete_the_state_after_it_was_read(context, tmp_path):
    """The audit reads all topics in between, which takes longer than a query keeps a version of its state."""
    accounts = facts.state(context, str(tmp_path / "checkpoint"))
    shutil.rmtree(tmp_path / "state")

    assert [("A", b"\x01account")] == [(row.card, bytes(row.value)) for row in accounts.collect()]


def test_a_state_that_disappears_during_the_read_is_unreadable(context, spark, tmp_path, monkeypatch):
    """The audit then compares the other places."""
    gone = spark.read.parquet(str(tmp_path / "state"))
    monkeypatch.setattr(facts, "state_variable", lambda *_: gone)
    shutil.rmtree(tmp_path / "state")

    with pytest.raises(UnreadableError, match=r"Spark's state: .*checkpoint: .*state"):
        facts.state(context, str(tmp_path / "checkpoint"))
