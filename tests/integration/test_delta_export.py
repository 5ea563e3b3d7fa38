"""The export to a Delta table or to Parquet has each line once, after every crash and for every reader."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipelines.__main__ import run
from pipelines.checkpoints import lock
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.queries.export import EXPORT, forget_progress
from schemas.topics import HADOOP
from services.messaging.avro import encoder
from services.settings import Settings
from services.sql.database import Database
from services.sql.maintenance import maintain
from tests.support.builders import IDS
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS, producer_of
from tests.support.processes import delete_newest_commit, run_to_the_end, start_pipeline, wait_until
from tests.support.waiting import REPORT_POLL_SECONDS

pytestmark = pytest.mark.usefixtures("topics_created")
DAY = 86_400_000


@pytest.fixture
def delta(settings: Settings) -> Settings:
    return settings.model_copy(update={"export_format": "delta"})


def publish_lines(settings: Settings, numbers: Iterator[int] | range) -> None:
    """One line for each number, on three days, and each fifth line twice, as after a crash of the fan-out."""
    client, encode = producer_of(settings), encoder(HADOOP, IDS)
    for number in numbers:
        record = {"InvoiceNumber": str(number), "ItemCode": "A", "TotalValue": number / 100, "StoreID": "S1"}
        value = encode(record | {"CreatedTime": 1_790_000_000_000 + number % 3 * DAY, "LineKind": "sale"})
        for _ in range(1 + (number % 5 == 0)):
            client.produce(settings.name_of(HADOOP), key=b"S1", value=value, headers={"ce_id": f"{number}#1"})
    assert 0 == client.flush(KAFKA_TIMEOUT_SECONDS)


def exported(settings: Settings) -> list[tuple[str, float]]:
    rows = DeltaTable(settings.export_dir).to_pyarrow_table().to_pylist()
    assert all(row["LineID"] == f"{row['InvoiceNumber']}#1" for row in rows)
    return sorted((row["InvoiceNumber"], row["TotalValue"]) for row in rows)


def expected(numbers: range) -> list[tuple[str, float]]:
    return sorted((str(number), number / 100) for number in numbers)


def commits(settings: Settings) -> int:
    return len(list(Path(settings.export_dir, "_delta_log").glob("*.json")))


def test_each_line_is_in_the_table_once(spark, delta):
    """This holds after a repeated batch, a new checkpoint, a backfill and a compaction. All readers see equal rows."""
    publish_lines(delta, range(40))
    run_to_the_end(spark, delta, EXPORT)
    assert expected(range(40)) == exported(delta)
    before = commits(delta)
    delete_newest_commit(EXPORT.checkpoint(delta))
    run_to_the_end(spark, delta, EXPORT)
    assert expected(range(40)) == exported(delta)
    assert before == commits(delta), "Delta skips the repeated batch"

    shutil.rmtree(EXPORT.checkpoint(delta))
    publish_lines(delta, range(40, 50))
    run_to_the_end(spark, delta, EXPORT)
    assert expected(range(50)) == exported(delta), "a new checkpoint reads the topic again"

    DeltaTable(delta.export_dir).delete("InvoiceNumber IN ('3', '41')")
    forget_progress(spark, delta)
    run_to_the_end(spark, delta, EXPORT)
    assert expected(range(50)) == exported(delta), "a backfill adds what the table lacks"

    assert maintain(delta, keep_hours=0).merged > 3
    publish_lines(delta, range(50, 60))
    run_to_the_end(spark, delta, EXPORT)
    assert expected(range(60)) == exported(delta), "the checkpoint and all rows survive the maintenance"
    assert_all_readers_agree(spark, delta)


def assert_all_readers_agree(spark, delta):
    names = ["InvoiceNumber", "ItemCode", "TotalValue", "date"]
    by_spark = sorted(tuple(row) for row in spark.read.format("delta").load(delta.export_dir).select(names).collect())
    by_deltalake = DeltaTable(delta.export_dir).to_pyarrow_table(columns=names).to_pylist()
    by_pandas = DeltaTable(delta.export_dir).to_pandas(columns=names)
    with closing(Database(delta)) as database:
        by_duckdb = database.run("SELECT InvoiceNumber, ItemCode, TotalValue, date FROM line_items").to_pylist()
    assert 60 == len(by_spark)
    assert by_spark == sorted(tuple(row.values()) for row in by_deltalake)
    assert by_spark == sorted(by_pandas.itertuples(index=False, name=None))
    assert by_spark == sorted(tuple(row.values()) for row in by_duckdb)


def test_a_killed_export_continues_where_its_table_ends(spark, delta, tmp_path):
    """SIGKILL between many small batches leaves neither a gap nor a line twice."""
    publish_lines(delta, range(600))
    with (tmp_path / "export.log").open("w+b") as log:
        small = {"LOYALTY_MAX_OFFSETS_PER_TRIGGER": "60", "LOYALTY_EXPORT_FORMAT": "delta"}
        process = start_pipeline(delta, log, "--query", "export", "--available-now", **small)
        table = Path(delta.export_dir, "_delta_log")
        wait_until(lambda: len(list(table.glob("*.json"))) >= 3, process, log, REPORT_POLL_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(exported(delta)) < 600, "the export had ended before the kill"
    run_to_the_end(spark, delta, EXPORT)
    assert expected(range(600)) == exported(delta)


def test_a_second_export_and_a_change_of_format_are_refused(spark, settings, delta):
    """A refused backfill leaves the checkpoint as it is."""
    with lock.hold(EXPORT.checkpoint(delta)):
        assert 2 == run(delta, ["export"], available_now=True)
    publish_lines(delta, range(3))
    run_to_the_end(spark, delta, EXPORT)
    with pytest.raises(CheckpointMismatchError, match="is a Delta table: set LOYALTY_EXPORT_FORMAT=delta"):
        EXPORT.start(spark, IDS, settings, available_now=True)
    other = settings.model_copy(update={"export_dir": f"{settings.export_dir}-2"})
    run_to_the_end(spark, other, EXPORT)
    with pytest.raises(CheckpointMismatchError, match="set LOYALTY_EXPORT_FORMAT=parquet"):
        EXPORT.start(spark, IDS, other.model_copy(update={"export_format": "delta"}), available_now=True)
    with pytest.raises(CheckpointMismatchError, match="set LOYALTY_EXPORT_FORMAT=parquet"):
        forget_progress(spark, other.model_copy(update={"export_format": "delta"}))
    assert Path(EXPORT.checkpoint(other)).exists(), "a refused backfill leaves the checkpoint as it is"
    assert expected(range(3)) == exported(delta)


def test_a_new_checkpoint_on_old_parquet_files_adds_what_they_lack(spark, settings):
    """Batches count from 0 again, and replace no older folder. A crash and a backfill repeat no row, either."""
    publish_lines(settings, range(20))
    run_to_the_end(spark, settings, EXPORT)
    shutil.rmtree(EXPORT.checkpoint(settings))
    publish_lines(settings, range(20, 30))
    run_to_the_end(spark, settings, EXPORT)
    assert expected(range(30)) == in_parquet(settings)
    delete_newest_commit(EXPORT.checkpoint(settings))
    run_to_the_end(spark, settings, EXPORT)
    assert expected(range(30)) == in_parquet(settings), "the repeated batch replaces its own folders only"

    shutil.rmtree(next(Path(settings.export_dir).glob("date=*")))
    assert len(in_parquet(settings)) < 30
    forget_progress(spark, settings)
    run_to_the_end(spark, settings, EXPORT)
    assert expected(range(30)) == in_parquet(settings), "a backfill adds what the files lack"
    publish_lines(settings, range(30, 40))
    run_to_the_end(spark, settings, EXPORT)
    assert expected(range(40)) == in_parquet(settings)

    rows = pq.ParquetDataset(settings.export_dir).read().drop(["LineID"])
    pq.write_to_dataset(rows, settings.export_dir, partition_cols=["date", "batch"])
    with pytest.raises(CheckpointMismatchError, match="files without the column LineID, which an older release wrote"):
        forget_progress(spark, settings)
    shutil.rmtree(EXPORT.checkpoint(settings))
    with pytest.raises(CheckpointMismatchError, match="files without the column LineID, which an older release wrote"):
        EXPORT.start(spark, IDS, settings, available_now=True)


def in_parquet(settings: Settings) -> list[tuple[str, float]]:
    rows = pq.ParquetDataset(settings.export_dir).read(["InvoiceNumber", "TotalValue"]).to_pylist()
    return sorted((row["InvoiceNumber"], row["TotalValue"]) for row in rows)
