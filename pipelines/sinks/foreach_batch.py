"""The foreachBatch sink, with Java's errors shortened for Spark."""

from collections.abc import Callable

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

WriteBatch = Callable[[DataFrame, int], None]

_LONGEST = 600


class BatchFailedError(RuntimeError):
    """A batch failed in Java. The message has the error and its causes, without their stack traces."""


def write_each_batch(rows: DataFrame, write: WriteBatch) -> DataStreamWriter:
    """A stream writer that calls a function with each micro-batch and its number."""
    return rows.writeStream.foreachBatch(shorten_java_errors(write))


def shorten_java_errors(write: WriteBatch) -> WriteBatch:
    """Wrap a function so that it raises BatchFailedError for an error of Java.

    When a query stops, Spark searches the message of the error for an interruption. Its regular expression uses stack
    frames for every character after "Py4JJavaError". A full stack trace overflows the thread's stack. Then a thousand
    lines of java.util.regex hide the reason of the stop.
    """

    def write_or_fail(batch: DataFrame, batch_id: int) -> None:
        try:
            write(batch, batch_id)
        except Py4JJavaError as error:
            raise BatchFailedError(summarize_java_error(str(error))) from None

    return write_or_fail


def summarize_java_error(trace: str) -> str:
    """The error and its causes in one line. It begins with the prefix by which Spark recognises an error of Java."""
    lines = [line.removeprefix(": ") for line in trace.splitlines() if line and not line[0].isspace()]
    return f"py4j.protocol.Py4JJavaError: {' | '.join(lines)}"[:_LONGEST]
