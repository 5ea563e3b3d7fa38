"""The pipeline process: runs all queries, or the named ones, in one driver."""

import logging
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import structlog
import typer
from confluent_kafka import KafkaException
from prometheus_client import REGISTRY
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.query import StreamingQuery

from pipelines.checkpoints import lock
from pipelines.driver.programme_watch import ProgrammeUnknownError, ProgrammeWatch
from pipelines.driver.stop import stop_between_batches
from pipelines.driver.watch import QueryWatch, is_optional
from pipelines.queries.archive import ARCHIVE
from pipelines.queries.export import EXPORT, forget_progress
from pipelines.queries.query_table import QUERIES
from pipelines.runtime.query_metrics import ACCEPTS_DATA_LOSS, ARCHIVE_INTERVAL, READY, ProgressMetrics
from pipelines.runtime.session import spark_session
from pipelines.sinks.foreach_batch import BatchFailedError, summarize_java_error
from services import tracing
from services.errors import SettingsError, UserError
from services.health import serve_health
from services.logging import configure_logging
from services.messaging.publishing import PublishError, require_broker
from services.messaging.schema_ids import SchemaRegistryUnavailableError, schema_ids
from services.settings import Settings, read_settings
from services.start_up import local_folder, require_port, require_writable

log = structlog.get_logger()

FOLDERS = {"export": "LOYALTY_EXPORT_DIR", "archive": "LOYALTY_ARCHIVE_DIR"}
"""By query: the variable that names the folder of its checkpoint, if it is not the folder of all queries."""

_STOP_IT = "stop it first"
_PIPELINE_ARCHIVES = (
    "a running pipeline archives by itself within LOYALTY_ARCHIVE_INTERVAL. For a complete archive, stop the pipeline "
    "first"
)

_ACCEPTS_DATA_LOSS = (
    "LOYALTY_ACCEPT_DATA_LOSS is true, so the queries skip lost records without an error: after the first "
    "micro-batches, start the pipeline again without this setting (docs/how-to/manage-checkpoints.md)"
)

_WHY_THE_JVM_ENDS = (
    "its process was killed, for example because the machine or the container had no memory left; start the pipeline "
    "again: it continues after the last committed micro-batches"
)


def main(
    query: Annotated[list[str] | None, typer.Option(help="Run only this query. Can be repeated.")] = None,
    *,
    available_now: Annotated[
        bool, typer.Option(help="Process the records that exist now, then end (Spark's trigger AvailableNow).")
    ] = False,
    to: Annotated[str | None, typer.Option(help="Hadoop URI to which the export writes.")] = None,
    backfill: Annotated[
        bool, typer.Option(help="Let the export read its topic again, and add the rows that its Delta table lacks.")
    ] = False,
) -> None:
    """Run the streaming queries until SIGTERM. Running micro-batches end first."""
    try:
        settings = read_settings(export_dir=to)
        if not available_now:
            settings.require_safe_metrics()
        tracing.start("loyalty-pipeline")
    except SettingsError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    configure_logging(settings)
    _quieten_py4j()
    names = _queries(settings, query or [], available_now=available_now)
    if backfill and names != [EXPORT.name]:
        raise typer.BadParameter("--backfill needs --query export alone")
    if settings.accept_data_loss and not available_now:
        log.warning(_ACCEPTS_DATA_LOSS)
    sys.exit(run(settings, names, available_now=available_now, backfill=backfill))


def _queries(settings: Settings, chosen: Sequence[str], *, available_now: bool) -> list[str]:
    """The chosen queries, or all, in the order of QUERIES: the archive is last, because its start can take long.

    With LOYALTY_ARCHIVE_INTERVAL=PT0S, only a call such as `loyalty archive` gets the archive.

    Raises typer.BadParameter if a query is unknown, or if none is left.
    """
    if unknown := sorted(set(chosen) - set(QUERIES)):
        raise typer.BadParameter(f"unknown query: {', '.join(unknown)}. Choose from {', '.join(QUERIES)}")
    archives = settings.archive_interval or (available_now and chosen)
    names = [name for name in QUERIES if name in (chosen or QUERIES) and (name != ARCHIVE.name or archives)]
    if not names:
        raise typer.BadParameter(
            "LOYALTY_ARCHIVE_INTERVAL=PT0S switches the archive off, so this process has no query: set a longer "
            "interval, or do not start this process"
        )
    return names


def _quieten_py4j() -> None:
    """Keep errors out of the log that this process or a query reports itself. py4j would add a traceback."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # at the level info it logs each call of the JVM
    # After the JVM has ended, py4j logs this line for each call.
    logging.getLogger().addFilter(lambda record: record.msg != "Exception while sending command.")
    # A stop interrupts the batch of the export, which is no error.
    logging.getLogger("py4j.clientserver").addFilter(
        lambda record: not (record.exc_info and isinstance(record.exc_info[1], BatchFailedError))
    )


def run(settings: Settings, names: Sequence[str], *, available_now: bool, backfill: bool = False) -> int:
    """Start the queries and watch them.

    The exit status is 0 unless a query has failed, or a signal has stopped ``available_now`` before the last record.
    """
    stopping = threading.Event()
    try:
        if not available_now:
            require_port(settings.metrics_host, settings.metrics_port, "LOYALTY_METRICS_PORT")
        with ExitStack() as locks:
            # Before Spark starts, because it would take seconds to start, and leave files.
            required = [name for name in names if not is_optional(name, names)]
            remedy = _PIPELINE_ARCHIVES if available_now and required == [ARCHIVE.name] else _STOP_IT
            _claim(settings, required, locks, remedy)
            return _run(settings, names, locks, stopping, available_now=available_now, backfill=backfill)
    except (ProgrammeUnknownError, PublishError) as error:
        log.error("stopped without Kafka", reason=str(error))  # noqa: TRY400  # a traceback would not help the user
    except SchemaRegistryUnavailableError as error:
        log.error("stopped without the Schema Registry", reason=str(error))  # noqa: TRY400
    except UserError as error:
        log.error("refused to start", reason=str(error))  # noqa: TRY400
        return 2
    except KafkaException as error:
        log.error("Kafka refused a request", reason=error.args[0].str())  # noqa: TRY400
    except (OSError, Py4JError, PySparkRuntimeError) as error:
        reason = summarize_java_error(str(error)) if isinstance(error, Py4JError) else str(error)
        if stopping.is_set():
            # systemd, for example, sends SIGTERM to the JVM, too.
            log.warning("Spark ended first: the next start runs its last micro-batches again", reason=reason)
            return int(available_now)
        if isinstance(error, (ConnectionRefusedError, Py4JNetworkError)):
            event, reason = "Spark's JVM has ended", _WHY_THE_JVM_ENDS
        elif isinstance(error, OSError):
            event = "a file or connection cannot be used"
        else:
            event = "Spark failed"
        log.error(event, reason=reason)  # noqa: TRY400
    return 1


def _claim(settings: Settings, names: Sequence[str], locks: ExitStack, remedy: str = _STOP_IT) -> None:
    """Lock the checkpoints of these queries until the end of ``locks``.

    Raises UserError if a folder cannot be used, or if another process runs a query.
    """
    checkpoints = {name: QUERIES[name].checkpoint(settings) for name in names}
    for name, checkpoint in checkpoints.items():
        if folder := local_folder(checkpoint):
            require_writable(folder, FOLDERS.get(name, "LOYALTY_CHECKPOINT_DIR"))
    for checkpoint in checkpoints.values():  # a lock makes a file, so first check all folders
        locks.enter_context(lock.hold(checkpoint, remedy))


def _run(
    settings: Settings,
    names: Sequence[str],
    locks: ExitStack,
    stopping: threading.Event,
    *,
    available_now: bool,
    backfill: bool,
) -> int:
    # The first process of a container gets no signal that it does not handle. So this comes before everything slow.
    _handle_signals(stopping)
    require_broker(settings)  # Spark would need longer to notice, and its error is not clear.
    with ExitStack() as stack:
        if not available_now:
            ARCHIVE_INTERVAL.set(settings.archive_interval.total_seconds())
            ACCEPTS_DATA_LOSS.set(settings.accept_data_loss)
            stack.enter_context(serve_health(settings, settings.metrics_port, REGISTRY, _find_problem))
        spark = spark_session(settings)
        stack.callback(spark.stop)
        _handle_signals(stopping)  # PySpark has replaced the handler of SIGINT by one that aborts all micro-batches.
        if backfill:
            forget_progress(spark, settings)
        listener: Any = ProgressMetrics()
        spark.streams.addListener(listener)
        ids = schema_ids(settings)
        locked = {name for name in names if not is_optional(name, names)}
        # Before the first start: another query could write many records before this one refuses to start.
        for name in [each for each in names if each in locked]:
            QUERIES[name].check_start(spark, ids, settings)

        def start(name: str) -> StreamingQuery:
            query = QUERIES[name]
            if name not in locked:
                _claim(settings, [name], locks)
                locked.add(name)
            return query.start(spark, ids, settings, available_now=available_now)

        watch = QueryWatch(
            names,
            start,
            stopping,
            retries=not available_now,
            watch_programme=None if available_now else partial(ProgrammeWatch, settings),
        )
        queries = watch.queries
        stack.callback(lambda: stop_between_batches([*queries.values()], settings.stop_timeout))
        stack.callback(READY.set, 0)
        stack.callback(watch.close)
        if watch.start(names):  # if a query refuses to start, the stack stops the others
            READY.set(1)
            log.info("pipeline ready", queries=list(queries))
            watch.watch()
        return _exit_status(names, queries, is_stopped=stopping.is_set(), available_now=available_now)


def _exit_status(
    names: Sequence[str], queries: Mapping[str, StreamingQuery], *, is_stopped: bool, available_now: bool
) -> int:
    """1 if a query has failed, or if a query of ``available_now`` has not read its last record. Otherwise 0."""
    if any(query.exception() for query in queries.values()):
        return 1
    if not available_now:
        return 0
    if is_stopped and (len(queries) < len(names) or any(query.isActive for query in queries.values())):
        log.error("stopped before the last record: run the command again, and it continues")
        return 1
    if missing := [name for name in names if name not in queries]:
        log.error("some queries have not read the last record; the log above says why", queries=missing)
        return 1
    return 0


def _handle_signals(stopping: threading.Event) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stopping.set())


def _find_problem() -> str | None:
    return None if REGISTRY.get_sample_value("loyalty_pipeline_ready") else "the queries start or stop; see the log"


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name="loyalty pipeline")
