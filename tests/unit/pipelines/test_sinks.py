"""What the sinks decide without Spark. tests/spark has their writes."""

import json
from collections.abc import Iterator
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from pipelines.sinks import delta, foreach_batch, kafka, older_rows, parquet
from pipelines.sinks.delta import DeltaSink
from pipelines.sinks.foreach_batch import BatchFailedError, shorten_java_errors, summarize_java_error
from pipelines.sinks.older_rows import OlderRows
from pipelines.sinks.parquet import ParquetSink, has_rows, remove_staging_folders
from services.messaging.clients import LARGEST_REQUEST_BYTES
from services.settings import Settings
from tests.unit.pipelines.hadoop import Disk

NEW, OLD = date(2026, 11, 20), date(2026, 10, 30)
HOUR = 3_600
ADOPTED = 1_000_000.0
"""When the checkpoint began, in seconds since the epoch."""


@pytest.fixture(autouse=True)
def _functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of PySpark need a running JVM."""
    monkeypatch.setattr(older_rows, "time", SimpleNamespace(time=lambda: ADOPTED))
    monkeypatch.setattr(older_rows, "F", MagicMock())
    monkeypatch.setattr(parquet, "F", MagicMock())


class Rows:
    """A micro-batch with these dates. Each undated row has the date of its append time."""

    def __init__(self, oldest: float | None, dates: set[date], undated: set[date]) -> None:
        self._oldest, self._dates, self._undated = oldest, dates, undated
        self.joined: tuple[Any, ...] = ()

    def agg(self, _: object) -> Any:
        return SimpleNamespace(first=lambda: [self._oldest])

    def where(self, _: object) -> Any:
        return Rows(0, self._undated, set())

    def select(self, _: str) -> Any:
        found = [{"date": each} for each in self._dates]
        return SimpleNamespace(distinct=lambda: SimpleNamespace(collect=lambda: found))

    def join(self, *given: Any) -> str:
        self.joined = given
        return "new rows"


def older(disk: Disk, next_batch: int, days: timedelta = timedelta(0)) -> OlderRows:
    return OlderRows(disk.spark, "checkpoint", ["LineID"], lambda: next_batch, days)


def left_out(older: OlderRows, oldest: float | None, undated: set[date]) -> tuple[list[date] | None, Any]:
    """The dates whose keys a micro-batch is compared with, and the result. None if it is not compared."""
    rows: Any = Rows(oldest, {NEW}, undated)
    known, asked = MagicMock(), list[list[date]]()
    older_rows.F.col.return_value.isin = asked.append  # type: ignore[attr-defined]  # it is a mock
    result: Any = older.leave_out(rows, lambda: known)
    if result is rows:
        return None, None
    return sorted(asked[0]), (result, *rows.joined[1:])


@pytest.mark.parametrize(
    ("oldest", "is_compared"),
    [(ADOPTED - HOUR, True), (ADOPTED + HOUR, True), (ADOPTED + HOUR + 1, False), (None, False)],
)
def test_records_from_before_the_checkpoint_are_compared_with_the_folder(
    oldest: float | None, *, is_compared: bool
) -> None:
    """A new checkpoint reads them again. The clocks of broker and driver may differ by an hour."""
    found, joined = left_out(older(Disk(), 4), oldest, set())
    assert ([NEW] if is_compared else None) == found
    assert joined in (None, ("new rows", ["LineID"], "left_anti"))


@pytest.mark.parametrize(
    ("within", "earlier"),
    [
        (timedelta(0), []),
        (timedelta(hours=1), [1]),
        (timedelta(days=2), [1, 2]),
        (timedelta(days=2, seconds=1), [1, 2, 3]),
    ],
)
def test_the_copy_of_an_undated_row_can_have_a_later_date(within: timedelta, earlier: list[int]) -> None:
    """A row of a day can be the copy of one of the days before it, up to the longest time between the two."""
    found, _ = left_out(older(Disk(), 4, within), ADOPTED, {OLD})
    assert sorted([NEW, *(OLD - timedelta(days) for days in earlier)]) == found


def test_a_checkpoint_remembers_the_older_rows_of_its_folder() -> None:
    """Before its first commit it looks again. After that, the newest rows of the folder are its own."""
    disk = Disk()
    assert 4 == older(disk, 4).next_batch
    assert 5 == older(disk, 5).next_batch
    disk.entries |= Disk({"checkpoint/commits/0": "v1"}).entries
    assert 5 == older(disk, 9).next_batch
    assert left_out(older(disk, 9), ADOPTED, set())[0] == [NEW]


def test_a_new_folder_has_no_older_rows() -> None:
    found = older(Disk(), 0)
    assert (0, None) == (found.next_batch, left_out(found, 0.0, set())[0])


def parquet_sink(monkeypatch: pytest.MonkeyPatch, next_batch: int, folders: list[str], planned: str) -> ParquetSink:
    day = json.dumps({"batchTimestampMs": 1_795_132_800_000})  # 2026-11-20 00:00 UTC
    files = {"export/_checkpoint/offsets/0": f"v1\n{day}" if planned else "", **dict.fromkeys(folders, "")}
    monkeypatch.setattr(parquet, "OlderRows", lambda *_: SimpleNamespace(next_batch=next_batch, leave_out=MagicMock()))
    disk = Disk({name if "/_" in name else f"export/{name}/part-0.parquet": text for name, text in files.items()})
    return ParquetSink(disk.spark, "export", "export/_checkpoint", {"LineID": "STRING"})


@pytest.mark.parametrize(
    ("next_batch", "folders", "newest"),
    [
        (0, [], -1),
        (0, [f"date={NEW}/batch=0", f"date={NEW}/batch=11", "date=2026-11-21/batch=9"], 11),
        (0, [f"date={OLD}/batch=7"], -1),
        (10, [f"date={NEW}/batch=13"], 3),
        (10, [f"date={NEW}/batch=9"], -1),
        (10, [f"date={NEW}/batch=4"], -1),
    ],
    ids=["none", "several", "before the plan", "after older rows", "only older rows", "much older rows"],
)
def test_the_files_say_which_micro_batch_is_the_newest(
    monkeypatch: pytest.MonkeyPatch, next_batch: int, folders: list[str], newest: int
) -> None:
    """A checkpoint that is older than its files is refused. The dates before its newest plan are not searched."""
    assert newest == parquet_sink(monkeypatch, next_batch, folders, "planned").newest_batch()


def test_a_micro_batch_has_a_folder_after_those_of_the_older_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the number of the micro-batch alone, it would replace older rows. The rows of its own first attempt are no
    older rows: it replaces them.
    """
    written, spark, sink = MagicMock(), MagicMock(), parquet_sink(monkeypatch, 10, [], "")
    monkeypatch.setattr(parquet, "overwrite_folders", written)
    sink._spark = spark
    sink._older.leave_out = lambda rows, read_known: (read_known(), rows)[1]  # type: ignore[method-assign]
    for batch in (12, 13):  # of an older row
        parquet.F.col.return_value = batch  # type: ignore[attr-defined]  # it is a mock
        sink.append(MagicMock(), 3, "StoreID")
    assert [True, False] == [call.args[0] for call in spark.read.schema().parquet().where.call_args_list]
    assert {13} == {call.args[0] for call in parquet.F.lit.call_args_list}  # type: ignore[attr-defined]
    assert ("export", "StoreID") == written.call_args.args[1:]


def test_only_the_hidden_folders_of_killed_processes_are_removed() -> None:
    """The checkpoint is in the same folder."""
    disk = Disk({f"export/{name}/0": "" for name in (".spark-staging-1", "_checkpoint", "date=2026-11-20")})
    remove_staging_folders(disk.spark, "export")
    assert {"_checkpoint", "date=2026-11-20"} == {each.parts[1] for each in disk.entries if len(each.parts) == 2}
    assert has_rows(disk.spark, "export")
    assert not has_rows(Disk({"export/_checkpoint/0": ""}).spark, "export")


@pytest.mark.parametrize(
    ("log", "transaction", "newest"),
    [(["00000000000000000000.json"], 7, 7), (["00000000000000000000.json"], None, -1), (["_commits"], 7, -1)],
)
def test_the_log_of_delta_says_which_micro_batch_is_the_newest(
    monkeypatch: pytest.MonkeyPatch, log: list[str], transaction: int | None, newest: int
) -> None:
    """The number belongs to the query of this checkpoint. A first write that was interrupted leaves no version."""
    monkeypatch.setattr(delta, "OlderRows", lambda *given: SimpleNamespace(next_batch=given[3]()))
    disk = Disk({f"export/_delta_log/{name}": "" for name in log} | {"checkpoint/metadata": '{"id": "query"}'})
    spark, found = disk.spark, MagicMock()
    found.isDefined.return_value, found.get.return_value = transaction is not None, transaction
    logs = MagicMock()
    transactions = logs.forTable.return_value.unsafeVolatileSnapshot.return_value.transactions.return_value
    transactions.get.side_effect = {"query": found}.__getitem__
    setattr(spark._jvm, "org.apache.spark.sql.delta.DeltaLog", logs)
    spark._jsparkSession = None
    sink = DeltaSink(spark, "export", "checkpoint", "LineID", timedelta(0))
    assert newest == sink.newest_batch()
    assert (log[0] != "_commits") == bool(sink._older.next_batch)
    assert delta.is_table(spark, "export")


def test_a_commit_of_delta_names_its_query_and_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta skips a commit that the table has. Otherwise a replayed micro-batch would double its rows."""
    writer = MagicMock()
    for name in ("drop", "repartition", "sortWithinPartitions", "format", "mode", "partitionBy", "option"):
        getattr(writer, name).return_value = writer
    writer.write = writer
    monkeypatch.setattr(delta, "OlderRows", lambda *_: SimpleNamespace(leave_out=lambda *_: writer))
    disk = Disk({"checkpoint/metadata": '{"id": "query"}'})
    DeltaSink(disk.spark, "export", "checkpoint", "LineID", timedelta(0)).append(MagicMock(), 3, "StoreID")
    options = dict(call.args for call in writer.option.call_args_list)
    assert {"txnAppId": "query", "txnVersion": 3, "mergeSchema": "true"}.items() <= options.items()
    writer.mode.assert_called_once_with("append")
    writer.drop.assert_called_once_with("timestamp")
    writer.sortWithinPartitions.assert_called_once_with("date", "StoreID")


def test_the_producer_of_spark_loses_and_repeats_no_record() -> None:
    """The broker takes a request of this size, and the pipeline refuses larger records."""
    options = kafka._options(Settings())
    assert {
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.max.request.size": str(LARGEST_REQUEST_BYTES),
        "includeHeaders": "true",
    }.items() <= options.items()


def test_an_error_of_java_has_one_short_line() -> None:
    """Spark searches it with a regular expression that needs much memory for each character."""
    trace = "An error occurred.\n: java.io.IOException: full\n\tat a.B.c\n\nCaused by: java.lang.Error\n\t... 50 more\n"
    expected = (
        "py4j.protocol.Py4JJavaError: An error occurred. | java.io.IOException: full | Caused by: java.lang.Error"
    )
    assert expected == summarize_java_error(trace)
    assert 600 == len(summarize_java_error("x" * 700))


def test_only_errors_of_java_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The long error is not a cause of the short one. Otherwise Spark would get both."""

    class JavaError(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
        def __init__(self) -> None:
            """The error itself needs a JVM."""

        def __str__(self) -> str:
            return ": java.io.IOException\n\tat a.B.c"

    errors: Iterator[Exception] = iter([JavaError(), ValueError("not of Java")])

    def write(*_: object) -> None:
        raise next(errors)

    shortened: Any = shorten_java_errors(write)
    with pytest.raises(BatchFailedError, match=r"^py4j.protocol.Py4JJavaError: java.io.IOException$") as raised:
        shortened(None, 0)
    assert (None, True) == (raised.value.__cause__, raised.value.__suppress_context__)
    with pytest.raises(ValueError, match="not of Java"):
        shortened(None, 1)
    rows = MagicMock()
    monkeypatch.setattr(foreach_batch, "shorten_java_errors", lambda each: (each, "shortened"))
    foreach_batch.write_each_batch(rows, write)
    rows.writeStream.foreachBatch.assert_called_once_with((write, "shortened"))
