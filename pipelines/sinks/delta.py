"""The Delta sink: one commit for each micro-batch."""

import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.reader import CheckpointReader
from pipelines.sinks.parquet import ROWS_PER_FILE

_LOG = "_delta_log"
_ADOPTED = "adopted-table"

SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A commit first reads the log of the table, with 50 tasks by default.
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""The options of a Spark session that writes Delta tables."""


def is_table(spark: SparkSession, directory: str) -> bool:
    """Whether there is a Delta table at a Hadoop URI."""
    return Files(spark, directory).exists(_LOG)


class DeltaSink:
    """Appends micro-batches to a table, each once.

    A commit has the id of the query and the number of the micro-batch (``txnAppId``, ``txnVersion``), and Delta skips a
    commit that the table has. The query of a new checkpoint has another id, so none of its commits is skipped. It reads
    records again that the table may have. So it leaves out rows with known keys until it reads newer records.
    """

    def __init__(self, spark: SparkSession, directory: str, checkpoint: str, key: str) -> None:
        self._directory = directory
        self._key = key
        self._checkpoint = CheckpointReader(spark, checkpoint)
        self._files = Files(spark, checkpoint)
        if is_table(spark, directory) and not self._checkpoint.batches():
            self._files.write(_ADOPTED, str(time.time()))
        self._adopted_time = float(self._files.read(_ADOPTED)) if self._files.exists(_ADOPTED) else None

    def append(self, rows: DataFrame, batch_id: int, *order: str) -> None:
        """Append the rows of a micro-batch, with folders by ``date`` and each file sorted by date and ``order``.

        ``rows`` also has the append time of each record (``timestamp``), which is not written.
        """
        if self._may_have_been_read_before(rows):
            rows = self._without_known(rows)
        (
            rows.drop("timestamp")
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

    def _may_have_been_read_before(self, rows: DataFrame) -> bool:
        if self._adopted_time is None:
            return False
        oldest = rows.agg(F.min("timestamp").cast("double")).first()
        return oldest is not None and oldest[0] is not None and oldest[0] <= self._adopted_time

    def _without_known(self, rows: DataFrame) -> DataFrame:
        dates = [row["date"] for row in rows.select("date").distinct().collect()]
        table = rows.sparkSession.read.format("delta").load(self._directory)
        return rows.join(table.where(F.col("date").isin(dates)).select(self._key), self._key, "left_anti")
