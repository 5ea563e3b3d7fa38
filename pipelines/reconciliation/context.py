"""The shared context of all steps of the audit, of the rebuild and of ``loyalty returns``. It starts and ends them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipelines.runtime.session import spark_session
from pipelines.sinks.foreach_batch import summarize_java_error
from services.cli.output import FAILED, stop
from services.domain.programme import Programmes
from services.errors import UserError
from services.logging import configure_logging
from services.messaging.schema_ids import SchemaIds, schema_ids
from services.programmes.topic import load_programmes
from services.pseudonyms import Pseudonyms, pseudonyms
from services.settings import Settings, read_settings


@dataclass(frozen=True, slots=True)
class Context:
    """The values that all steps share."""

    spark: SparkSession
    settings: Settings
    ids: SchemaIds
    programmes: Programmes
    pseudonyms: Pseudonyms


@contextmanager
def open_context(app_name: str, failed: int = FAILED) -> Iterator[Context]:
    """Start Spark and yield the context. Ends the process with a one-line message if an error prevents the work.

    ``failed`` is the exit status of such an error, unless the settings must change.
    """
    try:
        settings = read_settings()
        configure_logging(settings)
        for name in ("py4j", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        # Read these before the start of Spark, which takes seconds.
        rules, names = load_programmes(settings), pseudonyms(settings.pseudonym_key_file)
        spark = spark_session(settings, app_name)
        try:
            yield Context(spark, settings, schema_ids(settings), rules, names)
        finally:
            spark.stop()
    except UserError as error:
        stop(str(error), max(failed, error.exit_status))
    except (Py4JJavaError, PySparkException) as error:
        stop(f"Spark: {one_line(error)}", failed)


def one_line(error: Exception) -> str:
    """The first line of a message, or the causes of an error of Java. The other lines do not help a user."""
    if isinstance(error, Py4JJavaError):
        return summarize_java_error(str(error)).removeprefix("py4j.protocol.Py4JJavaError: ")
    return str(error).partition("\n")[0]
