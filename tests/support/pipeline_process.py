"""The pipeline as a process, and its checkpoints as a crash leaves them; for tests."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pipelines.runtime.query import Query


def run_to_the_end(spark: "SparkSession", settings: Settings, *queries: "Query") -> None:
    """Run the queries until they have read all there is; those that a starved machine gave no time start again."""
    from pyspark.errors import StreamingQueryException

    from pipelines.__main__ import MAX_RESTARTS, WORKER_TIMEOUT

    def start(query: "Query") -> "StreamingQuery":
        return query.start(spark, FolderSchemaIds(), settings, available_now=True)

    restarts_left = MAX_RESTARTS
    running = [(query, start(query)) for query in queries]
    while running:
        query, started = running.pop()
        try:
            started.awaitTermination()
        except StreamingQueryException as error:
            if not restarts_left or WORKER_TIMEOUT not in str(error):
                raise
            restarts_left -= 1
            running.append((query, start(query)))


def start_pipeline(settings: Settings, log: IO[str], *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """The pipeline as a user starts it, in a session of its own so that it can be killed whole."""
    from infra.local import jars
    from infra.local.java import find_java_home
    from infra.local.ports import free_port

    complete = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "LOYALTY_TOPIC_PREFIX": settings.topic_prefix,
        "LOYALTY_CHECKPOINT_DIR": settings.checkpoint_dir,
        "LOYALTY_EXPORT_DIR": settings.export_dir,
        "LOYALTY_SALES_INTERVAL": "PT1S",
        "LOYALTY_EXPORT_INTERVAL": "PT1S",
        "LOYALTY_METRICS_PORT": str(free_port()),
        "LOYALTY_SPARK_MASTER": "local[2]",
        "LOYALTY_SPARK_JAVA_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "LOYALTY_SPARK_JARS_DIR": str(jars.folder("spark")),
        **environment,
    }
    command = [sys.executable, "-m", "pipelines", *arguments]
    return subprocess.Popen(command, env=complete, stdout=log, stderr=log, start_new_session=True)


def spark_process_settings(settings: Settings) -> Settings:
    """Settings for another process that starts Spark beside the tests: two cores and little memory."""
    from infra.local import jars

    return settings.model_copy(
        update={
            "spark_master": "local[2]",
            "spark_jars_dir": jars.folder("spark"),
            "spark_driver_memory": "700m",
            "spark_java_options": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }
    )


def wait_until(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], log: IO[str], seconds: int = 480
) -> None:
    """Wait for a condition for as long as the process runs; else fail with the end of its log."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, Path(log.name).read_text(encoding="utf-8")[-4000:]
        assert time.monotonic() < deadline, Path(log.name).read_text(encoding="utf-8")[-4000:]


def replay_newest_batch(checkpoint: str) -> None:
    """Take away the newest commit: Spark replays that batch, as after a crash between the sink and the commit."""
    _take_away([max(_batches(checkpoint, "commits"), key=lambda path: int(path.name))])


def rewind(checkpoint: str) -> None:
    """Make Spark forget all batches but the first: what is due comes due again, from the same state."""
    _take_away([path for log in ("commits", "offsets") for path in _batches(checkpoint, log) if path.name != "0"])


def _batches(checkpoint: str, log: str) -> list[Path]:
    return [path for path in Path(checkpoint, log).iterdir() if path.name.isdigit()]


def _take_away(files: list[Path]) -> None:
    for file in files:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
