"""Make the archive of Spark's classes, from which Java starts faster (``pipelines.runtime.class_archive``).

``make setup`` runs this module once, with the folder of Spark's jars. Without the archive everything works, and each
start of Spark takes longer.
"""

import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import SparkContext
from pyspark.sql import functions as F

from pipelines.runtime.class_archive import SILENT, archive_in
from pipelines.runtime.session import spark_session
from services.settings import Settings


def make(jars: Path) -> None:
    """Run a join and a stateful query. When Java ends, it writes the classes that it has used."""
    archive = archive_in(jars)
    archive.unlink(missing_ok=True)
    part = archive.with_suffix(".part")
    with TemporaryDirectory() as folder:
        settings = Settings(
            spark_master="local[2]",
            shuffle_partitions=2,
            spark_jars_dir=jars,
            spark_java_options=f"-XX:+UseSerialGC {shlex.quote(f'-XX:ArchiveClassesAtExit={part}')} {SILENT}",
            checkpoint_dir=folder,
            export_format="delta",
        )
        spark = spark_session(settings, "classes")
        ids = spark.range(100).groupBy((F.col("id") % 3).alias("key")).agg(F.collect_list("id").alias("ids"))
        ids.join(spark.range(3).withColumnRenamed("id", "key"), "key").orderBy("key").collect()
        texts = Path(folder, "texts")
        texts.mkdir()
        (texts / "a.txt").write_text("a\nb\na\n", encoding="utf-8")
        rows = spark.readStream.text(str(texts)).dropDuplicates(["value"])
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(Path(folder, "query")))
        writer.trigger(availableNow=True).start().awaitTermination()
        spark.stop()
        gateway: Any = SparkContext._gateway  # noqa: SLF001  # no public call ends Java
        gateway.shutdown()
        gateway.proc.stdin.close()  # the launcher's Java waits for the end of its input
        gateway.proc.wait()
    part.replace(archive)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
