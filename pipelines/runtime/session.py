"""The Spark session. A local run and spark-submit share the settings; spark-submit has its own master and jars."""

import os
import re
import sys
import threading
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext, accumulators
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pipelines.runtime import class_archive, java_log, socket_files
from pipelines.runtime.temporary_folder import TemporaryFolder, temporary_folder
from pipelines.sinks import delta
from services.settings import Settings
from services.start_up import StartUpError, local_folder
from services.verdicts import LARGEST_TEXT_BYTES

_STATE = "org.apache.spark.sql.execution.streaming.state"

_TASK_ATTEMPTS = 10
"""How often Spark tries a task.

Spark's default is once on one machine, and four times on a cluster. But a task can fail without a defect: its Python
worker needs more than ten seconds to start, or Kafka does not answer its consumer for 6 s. The failed query would end
the driver, whose restart takes longer than another attempt.
"""

_SHARED = {
    # Streaming queries cannot use it. If it is on, each query logs a warning.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": f"{_STATE}.RocksDBStateStoreProvider",
    # Upload the changes of a batch instead of whole RocksDB files, as Spark recommends for stateful queries.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting rows costs a read for each write (1.2 to 2.7 us in Spark's own StateStoreBasicOperationsBenchmark).
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # The next batch with data removes old identities. An extra batch only for that costs time.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # A micro-batch uses over a hundred generated classes for each query. The default cache holds 100 in all, so Spark
    # compiled the same code again in every micro-batch, and the JVM's compilers never finished (docs/lab/queries.md).
    "spark.sql.codegen.cache.maxEntries": "2000",
    # If a task fails after it has filled a cached block, the next attempt would read this block. Then the metrics would
    # lack what the failed attempt had observed, for example dead letters (SPARK-41497).
    "spark.rdd.cache.visibilityTracking.enabled": "true",
    # The default value. If it is not set, Spark 4.2.0 reads the process's environment for every field in an expression
    # that has no generated code (docs/lab/queries.md).
    "spark.sql.types.framework.enabled": "false",
    # By default PySpark tells Java the line of code of each operation on a column. Only errors of Spark show this line.
    # It makes an operation take four times as much CPU.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.task.maxFailures": str(_TASK_ATTEMPTS),
    # By default, the call that stops a query waits for ever. Then a query that does not end would stop the thread that
    # watches all queries. While a broker hangs, a query needs up to 20 seconds.
    "spark.sql.streaming.stopTimeout": "25s",
    # A busy machine can miss Spark's default deadlines and still work.
    "spark.network.timeout": "600s",
    "spark.executor.heartbeatInterval": "60s",
    "spark.python.authenticate.socketTimeout": "120s",
}

_AVRO_OPTIONS = " ".join(
    f"-Dorg.apache.avro.{name}={value}"
    for name, value in {
        # The length precedes a text or an array. Corrupt bytes could contain a length of gigabytes and end the process.
        "limits.string.maxLength": LARGEST_TEXT_BYTES,
        "limits.bytes.maxLength": LARGEST_TEXT_BYTES,
        "limits.collectionItems.maxLength": 100_000,
        # Avro's fast reader never forgets a schema (AVRO-4253), and Spark parses a schema in every task. At 200
        # invoices/s the heap was full after 40 minutes.
        "fastread": "false",
    }.items()
)

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark's pages are off here. By default Spark still keeps 1,000 jobs, stages and plans for them, which was half of
    # the live heap, and notes each change of a task (docs/lab/queries.md).
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.ui.liveUpdate.period": "-1",
    # Spark allocates a whole block for each broadcast. A task of a small micro-batch needs a few kilobytes.
    "spark.broadcast.blockSize": "256k",
}

_SOCKET_FILES = "spark.python.unix.domain.socket.enabled"
"""Whether the JVM and its Python workers talk through socket files instead of TCP.

With TCP, a micro-batch of the loyalty query takes 1.5 to 1.9 times as long (docs/lab/queries.md). But each file costs
memory of the JVM until ``socket_files.forget``, and nothing calls this in the executors of a cluster.
"""

_LOCAL_FILES = {
    # By default Spark writes checkpoints through Hadoop's FileContext. On a local disk that starts ten processes
    # (readlink, chmod) for each of the eight files of a micro-batch. This manager starts two. It also writes data and
    # checksum to other files first and then renames them (docs/lab/queries.md).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_BARE_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
"""Hadoop's file system of this machine, without a process for the permissions of each file (decision 55)."""

_BARE_FILES_JAR = "hadoop-bare-naked-local-fs-"

_WORKER = Path(__file__).with_name("python-worker")
_LOG4J = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def spark_session(settings: Settings, app_name: str = "retail-loyalty") -> SparkSession:
    """Start the session of this process, or return the running one.

    Under spark-submit, the command line gives master, memory and jars. Otherwise the settings give them.
    """
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit sets it for Python programs
    if not is_submitted:
        _set_environment(settings.spark_master)
    for name in ("PYSPARK_PYTHON", "PYSPARK_WORKER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    builder = SparkSession.builder.appName(app_name)
    options = {**_SHARED, "spark.sql.shuffle.partitions": str(settings.shuffle_partitions)}
    if settings.export_format == "delta":
        options |= delta.SESSION
    executor_options = "spark.executor.extraJavaOptions"
    options[executor_options] = f"{SparkConf().get(executor_options, '')} {_AVRO_OPTIONS}".strip()
    if not is_submitted:
        options = _start_java(options, settings)
    for option, value in options.items():
        builder = builder.config(option, value)
    session = builder.getOrCreate()
    _log_uncaught_exceptions(session)
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        # If the JVM ends, the default method prints a traceback. The pipeline logs the end of the JVM.
        server.handle_error = _ignore  # type: ignore[assignment, method-assign]
    return session


def _set_environment(master: str) -> None:
    """Replace variables that a user can have for another Spark."""
    # Without a UTF-8 locale, Java cannot open a file whose path has a letter that is not ASCII.
    os.environ["LC_ALL"] = "C.UTF-8"
    # Executors on other machines need their own Python.
    python_too = ["PYSPARK_PYTHON"] * _is_local(master)
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", *python_too):
        os.environ.pop(name, None)
    os.environ.setdefault("PYSPARK_PYTHON", worker_python(master))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _start_java(options: dict[str, str], settings: Settings) -> dict[str, str]:
    """Start the JVM of this process unless it runs. Returns all options of the session."""
    jars = sorted(settings.spark_jars_dir.resolve().glob("*.jar"))
    if not jars:
        raise StartUpError(
            f"LOYALTY_SPARK_JARS_DIR: {settings.spark_jars_dir} has no jars, so Spark cannot read Kafka: set it "
            "to the folder with Spark's jars. `make setup` and `loyalty up` download them"
        )
    folder = temporary_folder()
    java_options = (
        _LOG4J,
        _AVRO_OPTIONS,
        folder.java_option,
        class_archive.options(settings.spark_jars_dir),
        settings.spark_java_options,
    )
    options = options | _LOCAL | _file_options(settings, jars)
    options |= {
        _SOCKET_FILES: str(_is_local(settings.spark_master)).lower(),
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.jars": ",".join(map(str, jars)),
    }
    if settings.spark_master:
        options["spark.master"] = _master(settings.spark_master)
    if SparkContext._gateway is None:  # noqa: SLF001  # no public call takes a gateway alone
        conf = SparkConf().setAll([*options.items()])
        SparkContext._ensure_initialized(gateway=_java_gateway(conf, folder, as_json=settings.log_format == "json"))  # noqa: SLF001
        if _is_local(settings.spark_master):
            socket_files.forget_regularly(SparkContext._jvm)  # noqa: SLF001
    # Without a master in the settings, only the JVM knows the cores.
    options.setdefault("spark.master", _master(settings.spark_master))
    return options


def _file_options(settings: Settings, jars: Iterable[Path]) -> dict[str, str]:
    if not has_local_checkpoints(settings):
        return {}
    found = [jar for jar in jars if jar.name.startswith(_BARE_FILES_JAR)]
    if not found or not _is_local(settings.spark_master) or has_links(settings):
        return _LOCAL_FILES
    # Spark uses files before it loads the classes of ``spark.jars``.
    return _LOCAL_FILES | {"spark.driver.extraClassPath": str(found[0]), "spark.hadoop.fs.file.impl": _BARE_FILES}


def _is_local(master: str) -> bool:
    return not master or master.startswith("local")


def _master(master: str) -> str:
    """The master with the number of attempts of a task, unless it says another one. Empty: this machine."""
    return re.sub(r"^local\[([^,\]]+)\]$", rf"local[\1,{_TASK_ATTEMPTS}]", master or _local_master())


def _local_master() -> str:
    """Two tasks at once for each core, because a task of a small micro-batch mostly waits (docs/lab/queries.md)."""
    jvm: Any = SparkContext._jvm  # noqa: SLF001
    # Java knows the limit of a container. Python does not.
    return f"local[{2 * jvm.java.lang.Runtime.getRuntime().availableProcessors()}]"


def _ignore(*_: object) -> None:
    pass


def _log_uncaught_exceptions(session: SparkSession) -> None:
    """Let Java's threads write an exception that nobody catches to the log. By default they write it to stderr.

    The handler ends the process if the memory is used up, and in no other case.
    """
    jvm: Any = session._jvm  # noqa: SLF001
    handler = jvm.org.apache.spark.util.SparkUncaughtExceptionHandler(False)  # noqa: FBT003
    jvm.java.lang.Thread.setDefaultUncaughtExceptionHandler(handler)


def _java_gateway(conf: SparkConf, folder: TemporaryFolder, *, as_json: bool) -> JavaGateway:
    """Start the JVM of this process. What it writes to stderr goes to the stderr of this process (``java_log``)."""
    reading, writing = os.pipe()
    forward = partial(java_log.forward, reading, as_json=as_json)
    threading.Thread(target=forward, name="stderr-of-java", daemon=True).start()
    try:
        return launch_gateway(conf, {"stderr": writing, "pass_fds": [folder.lock]})  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)


def worker_python(master: str) -> str:
    """The Python program that Spark starts for workers, in a session without spark-submit."""
    # A Spark distribution has py4j only in a zip.
    py4j = find_spec("py4j")
    is_installed = py4j is not None and ".zip" not in str(py4j.origin)
    # The script needs this process's environment, which the workers of a cluster do not have.
    return str(_WORKER) if is_installed and _is_local(master) else sys.executable


def has_local_checkpoints(settings: Settings) -> bool:
    """Whether all checkpoints are on a local disk.

    On other file systems a rename may not be atomic, or may not replace an existing file.
    """
    # With a Hadoop configuration, a path without a scheme may be on any file system.
    return "HADOOP_CONF_DIR" not in os.environ and all(map(local_folder, _folders(settings)))


def has_links(settings: Settings) -> bool:
    """Whether a folder of the queries is a symbolic link. ``_BARE_FILES`` does not list the files behind it."""
    folders = [folder for folder in map(local_folder, _folders(settings)) if folder]
    return any(each.is_symlink() for folder in folders for each in (folder, *folder.glob("*")))


def _folders(settings: Settings) -> tuple[str, str, str]:
    return settings.checkpoint_dir, settings.export_dir, settings.archive_dir
