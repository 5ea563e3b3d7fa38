"""Functions for foreachBatch that tell Spark in few words what failed in Java."""

from collections.abc import Callable

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

WriteBatch = Callable[[DataFrame, int], None]

_LONGEST = 600


class BatchFailedError(RuntimeError):
    """A batch failed in Java; the message has the error and its causes, without their stack traces."""


def in_few_words(write: WriteBatch) -> WriteBatch:
    """The same function, raising BatchFailedError where Java fails.

    Spark asks of a query that was stopped whether an interruption ended its batch, by a regular expression over all
    that Python says: it takes frames of the stack for each character behind the words of a Py4JJavaError. A whole
    trace overflows the thread's stack, and a thousand lines of java.util.regex hide why the query was stopped.
    """

    def written(batch: DataFrame, batch_id: int) -> None:
        try:
            write(batch, batch_id)
        except Py4JJavaError as error:
            raise BatchFailedError(few_words(str(error))) from None

    return written


def few_words(trace: str) -> str:
    """The error and its causes, a line each, behind the words by which Spark knows an error of Java."""
    lines = [line.removeprefix(": ") for line in trace.splitlines() if line and not line[0].isspace()]
    return f"py4j.protocol.Py4JJavaError: {' | '.join(lines)}"[:_LONGEST]
