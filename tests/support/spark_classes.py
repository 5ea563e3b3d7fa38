"""An archive of Spark's classes, so that each Java of the tests starts with 6 instead of 9 seconds of processor time.

``python -m tests.support.spark_classes`` makes it. Java ignores an archive that does not fit its jars or options.
"""

import os
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from infra.local import jars
from infra.local.java import find_java_home
from services.settings import Settings

START = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Java options for little memory and a quick start.

With one level of compilation the default code cache is too small for all queries. A start with a first job takes 23 CPU
seconds. Java needs 4 of them to verify Spark's bytecode.
"""

ARCHIVE = jars.ROOT / "var" / f"spark-{version('pyspark')}.jsa"


def options() -> str:
    """The Java options of each Spark in the tests. Java says nothing about an archive that does not fit."""
    return f"{START} -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off" if ARCHIVE.is_file() else START


def make() -> None:
    """Run a join and a stateful query. Java writes the classes that it used when it ends."""
    from pyspark import SparkContext
    from pyspark.sql import functions as F

    from pipelines.runtime.session import spark_session

    os.environ["JAVA_HOME"] = str(find_java_home())
    part = ARCHIVE.with_suffix(".part")
    with TemporaryDirectory() as folder:
        settings = Settings(
            spark_master="local[2]",
            shuffle_partitions=2,
            spark_jars_dir=jars.folder("spark"),
            spark_java_options=f"{START} -XX:ArchiveClassesAtExit={part} -Xlog:cds=off -Xlog:cds+dynamic=off",
            checkpoint_dir=folder,
            export_format="delta",
        )
        spark = spark_session(settings, "classes")
        ids = spark.range(100).groupBy((F.col("id") % 3).alias("key")).agg(F.collect_list("id").alias("ids"))
        ids.join(spark.range(3).withColumnRenamed("id", "key"), "key").orderBy("key").collect()
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        rows = rows.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["value"])
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(Path(folder) / "query"))
        writer.trigger(once=True).start().awaitTermination()
        spark.stop()
        gateway = SparkContext._gateway  # no public call ends Java
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()  # the launcher's Java waits for the end of its input
        gateway.proc.wait()
    part.replace(ARCHIVE)


if __name__ == "__main__" and not ARCHIVE.is_file():
    make()
