"""The Spark session: the same settings for a local run and for spark-submit, which brings its own master and jars."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

from pipelines.checkpoints.lock import local_folder
from services.settings import Settings

_STATE = "org.apache.spark.sql.execution.streaming.state"

_SHARED = {
    # Streaming queries take no part in it, and say so in a warning each where it is on.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": f"{_STATE}.RocksDBStateStoreProvider",
    # Uploads what a batch changed, not whole RocksDB files: the recommended setting for all stateful queries.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting rows costs a look-up for every write (1.2 to 2.7 us in Spark's own StateStoreBasicOperationsBenchmark).
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # Repeats are forgotten with the next batch that has data; a batch of its own for that only costs time.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Shorter trips between the JVM and its Python workers than over TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # Its default; but where nobody has set it, Spark 4.2.0 asks the process's environment for every field that is read
    # in an expression without code of its own (docs/lab/benchmarks.md).
    "spark.sql.types.framework.enabled": "false",
}

# A text or array of Avro says how long it is before it comes: corrupt bytes would claim gigabytes and end the process.
_AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{name}={limit}"
    for name, limit in {
        "string.maxLength": 2 * 2**20,
        "bytes.maxLength": 2 * 2**20,
        "collectionItems.maxLength": 100_000,
    }.items()
)

# A starved machine misses Spark's usual deadlines without being dead.
_PATIENCE = {
    "spark.network.timeout": "600s",
    "spark.executor.heartbeatInterval": "60s",
    "spark.python.authenticate.socketTimeout": "120s",
}

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL_FILES = {
    # By default Spark writes checkpoints through Hadoop's FileContext, which on a local disk starts ten processes for
    # each of the eight files of a micro-batch (readlink, chmod). This one starts two, and does the same otherwise: data
    # and checksum are written aside, then renamed (docs/lab/benchmarks.md).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_WORKER = Path(__file__).with_name("python-worker")
_LOG4J = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def spark_session(settings: Settings, app_name: str = "retail-loyalty") -> SparkSession:
    """Start the session of this process, or return the one that runs.

    Under spark-submit, master, memory and jars are what the command line says; without it they come from the settings.
    """
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, for the Python programs that it runs
    os.environ.setdefault("PYSPARK_WORKER_PYTHON", sys.executable)
    python = sys.executable if is_submitted else python_of_workers(settings.spark_master)
    os.environ.setdefault("PYSPARK_PYTHON", python)
    builder = SparkSession.builder.appName(app_name)
    options = {**_SHARED, **_PATIENCE, "spark.sql.shuffle.partitions": str(settings.shuffle_partitions)}
    executor_options = "spark.executor.extraJavaOptions"
    options[executor_options] = f"{SparkConf().get(executor_options, '')} {_AVRO_LIMITS}".strip()
    if not is_submitted:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        options |= _LOCAL | {
            "spark.master": settings.spark_master,
            "spark.driver.memory": settings.spark_driver_memory,
            "spark.driver.extraJavaOptions": f"{_LOG4J} {_AVRO_LIMITS} {settings.spark_java_options}",
        }
        if keeps_all_on_disk(settings):
            options |= _LOCAL_FILES
        jars = sorted(settings.spark_jars_dir.resolve().glob("*.jar"))
        options["spark.jars"] = ",".join(map(str, jars))
    for option, value in options.items():
        builder = builder.config(option, value)
    return builder.getOrCreate()


def python_of_workers(master: str) -> str:
    """The program that Spark starts for Python, of a session that is not submitted."""
    # A Spark distribution has it in the zip and nowhere else.
    py4j = find_spec("py4j")
    is_installed = py4j is not None and ".zip" not in str(py4j.origin)
    # Workers of a cluster do not have this process's environment, which the script needs.
    return str(_WORKER) if is_installed and master.startswith("local") else sys.executable


def keeps_all_on_disk(settings: Settings) -> bool:
    """Whether all checkpoints are on a local disk: elsewhere a rename need not be atomic, nor replace what is there."""
    places = (settings.checkpoint_dir, settings.export_dir, settings.archive_dir)
    # With a configuration of Hadoop's a place without a scheme may be anywhere.
    return "HADOOP_CONF_DIR" not in os.environ and all(local_folder(place) for place in places)
