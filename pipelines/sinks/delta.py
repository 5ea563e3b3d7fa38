"""The Delta sink: one commit for each micro-batch."""

from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.reader import CheckpointReader
from pipelines.sinks.older_rows import OlderRows
from pipelines.sinks.parquet import ROWS_PER_FILE

_LOG = "_delta_log"

SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A commit first reads the log of the table. The default is 50 tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""The options of a Spark session that writes Delta tables."""


def is_table(spark: SparkSession, directory: str) -> bool:
    """Whether there is a Delta table at a Hadoop URI."""
    return Files(spark, directory).exists(_LOG)


def _has_version(spark: SparkSession, directory: str) -> bool:
    """Whether the table can be read. If the first write of a table is interrupted, its log has no version."""
    return any(name[0].isdigit() for name in Files(spark, f"{directory}/{_LOG}").names())


class DeltaSink:
    """Appends micro-batches to a table, each once.

    A commit has the id of the query and the number of the micro-batch (``txnAppId``, ``txnVersion``). Delta skips a
    commit that the table already has. The query of a new checkpoint has another id, so Delta skips none of its commits.
    The sink omits the rows that a new checkpoint reads again, by their keys.
    """

    def __init__(
        self, spark: SparkSession, directory: str, checkpoint: str, key: str, repeated_within: timedelta
    ) -> None:
        """
        Args:
            key: the column that identifies a row.
            repeated_within: see ``OlderRows``.
        """
        self._spark = spark
        self._directory = directory
        self._checkpoint = CheckpointReader(spark, checkpoint)
        self._older = OlderRows(spark, checkpoint, [key], lambda: int(_has_version(spark, directory)), repeated_within)

    def newest_batch(self) -> int:
        """The number of the newest micro-batch of this checkpoint that the table has. -1 if it has none.

        Call it only if the checkpoint has a planned micro-batch.
        """
        if not _has_version(self._spark, self._directory):
            return -1
        jvm: Any = self._spark._jvm  # noqa: SLF001  # Delta has no public access to the transactions of a table
        logs = getattr(jvm, "org.apache.spark.sql.delta.DeltaLog")
        snapshot = logs.forTable(self._spark._jsparkSession, self._directory).unsafeVolatileSnapshot()  # noqa: SLF001
        found = snapshot.transactions().get(self._checkpoint.query_id())
        return int(found.get()) if found.isDefined() else -1

    def append(self, rows: DataFrame, batch_id: int, *order: str) -> None:
        """Append the rows of a micro-batch, with folders by ``date`` and each file sorted by date and ``order``.

        ``rows`` also has the append time of each record (``timestamp``), which is not written.
        """
        (
            self._older.leave_out(rows, lambda: self._spark.read.format("delta").load(self._directory))
            .drop("timestamp")
            .repartition("date")
            .sortWithinPartitions("date", *order)
            .write.format("delta")
            .mode("append")
            .partitionBy("date")
            .option("txnAppId", self._checkpoint.query_id())
            .option("txnVersion", batch_id)
            .option("mergeSchema", "true")  # a later release may add columns
            .option("compression", "zstd")
            .option("maxRecordsPerFile", ROWS_PER_FILE)
            .save(self._directory)
        )
