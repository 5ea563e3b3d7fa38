"""Which lines of Spark are in the log of the pipeline."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

SCHEDULER = "org.apache.spark.scheduler.DAGScheduler"
UNREACHABLE = "Connection to node 1 (/127.0.0.1:9092) could not be established. Node may not be available."
NETWORK = "org.apache.kafka.clients.NetworkClient"
STATE = "org.apache.spark.sql.execution.streaming.state.StateStore"
STATE_SERVER = "org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkStateServer"
UNCAUGHT = "org.apache.spark.util.SparkUncaughtExceptionHandler"


@pytest.mark.parametrize(
    ("name", "message", "is_shown"),
    [
        (STATE, "Loaded state store provider in loadTimeMs=2345 for storeId=StateStoreId[ operatorId=0 ]", False),
        (NETWORK, f"[Producer clientId=producer-1] {UNREACHABLE}", False),
        (NETWORK, "[Producer clientId=producer-1] Bootstrap broker a:9092 (id: -1 rack: null) disconnected", False),
        (NETWORK, "[Producer clientId=producer-1] Error while fetching metadata: {a=UNKNOWN_TOPIC_OR_PARTITION}", True),
        (STATE, "Error running maintenance thread", True),
        (
            "org.apache.spark.scheduler.DAGScheduler",
            "Failed to cancel job group 1. Cannot find active jobs for it.",
            False,
        ),
        (SCHEDULER, "Broadcasting large task binary", True),
        (STATE_SERVER, "Error reading message: null", False),
        (STATE_SERVER, "Failed to flush with errorMsg=null", False),
        (STATE_SERVER, "Error reading message: the state store is closed", True),
        (UNCAUGHT, "Uncaught exception in thread Thread[stateConnectionListenerThread,5,main]", False),
        (UNCAUGHT, "Uncaught exception in thread Thread[rocksdb-store-acquire,5,main]", True),
    ],
)
def test_a_healthy_log_is_quiet(spark: SparkSession, name: str, message: str, *, is_shown: bool) -> None:
    """A line that asks for no action is not shown. Another warning of the same logger is shown."""
    log4j: Any = spark._jvm.org.apache.logging.log4j
    logger = log4j.LogManager.getRootLogger().getContext().getConfiguration().getLoggerConfig(name)
    assert name == logger.getName()
    event = (
        log4j.core.impl.Log4jLogEvent.newBuilder()
        .setLoggerName(name)
        .setLevel(log4j.Level.WARN)
        .setMessage(log4j.message.SimpleMessage(message))
        .build()
    )
    assert is_shown is not logger.isFiltered(event)


def test_an_exception_that_no_thread_catches_is_logged(spark: SparkSession) -> None:
    """Otherwise Java writes it to stderr, and a log in JSON has lines that are not JSON."""
    handler = spark._jvm.java.lang.Thread.getDefaultUncaughtExceptionHandler()  # type: ignore[union-attr]
    assert UNCAUGHT == handler.getClass().getName()
