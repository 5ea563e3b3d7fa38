"""The pipeline process: runs all queries, or the named ones, in one driver."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from itertools import count
from typing import Annotated, Any

import structlog
import typer
from confluent_kafka import KafkaException
from prometheus_client import REGISTRY
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql.streaming.query import StreamingQuery

from pipelines.checkpoints import lock
from pipelines.queries.export import EXPORT, forget_progress
from pipelines.runtime.programme_watch import ProgrammeUnknownError, ProgrammeWatch
from pipelines.runtime.query import begin_no_batch, plans_batch, stop
from pipelines.runtime.query_metrics import READY, ProgressMetrics, announce
from pipelines.runtime.query_table import QUERIES
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

_PIPELINE_ARCHIVES = (
    "a running pipeline archives by itself within LOYALTY_ARCHIVE_INTERVAL. For a complete archive, stop the pipeline "
    "first"
)

OPTIONAL = {
    "archive": "The other queries run without the archive. Remove the cause within seven days, then restart this "
    "driver. If a scheduled `loyalty archive` runs, remove it. If Kafka has deleted records, stop the pipeline, run "
    "`LOYALTY_ACCEPT_DATA_LOSS=true loyalty archive`, and start the pipeline: only the archive then lacks these records"
}
"""By query that never stops the other queries of its process: what the log says if it cannot run."""

_WHY_THE_JVM_ENDS = (
    "its process was killed, for example because the machine or the container had no memory left; start the pipeline "
    "again: it continues after the last committed micro-batches"
)

WORKER_FAILURES = ("Python worker failed to connect back", "Python worker exited unexpectedly")
"""Errors of Spark after which a query starts again. Spark allows a Python process ten seconds to start, and no setting
changes that: a busy machine may need longer. A worker ends, for example, when the machine has no memory left."""

MAX_RESTARTS = 20
"""How often queries may fail with WORKER_FAILURES. A restart of the whole process would take much longer."""

_RESTART_SECONDS = 20.0
"""How long a new version of the programme waits for a micro-batch to end. By default its notice is a minute."""


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
    names = [*dict.fromkeys(query or (name for name in QUERIES if name != "archive" or settings.archive_interval))]
    unknown = sorted(set(names) - set(QUERIES))
    if unknown:
        raise typer.BadParameter(f"unknown query: {', '.join(unknown)}. Choose from {', '.join(QUERIES)}")
    if backfill and names != [EXPORT.name]:
        raise typer.BadParameter("--backfill needs --query export alone")
    sys.exit(run(settings, names, available_now=available_now, backfill=backfill))


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
        with ExitStack() as stack:
            free = _claim(settings, names, stack, available_now=available_now)
            status = _run(settings, free, stack, stopping, available_now=available_now, backfill=backfill)
            return status or int(available_now and len(free) < len(names))
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


def _claim(settings: Settings, names: Sequence[str], stack: ExitStack, *, available_now: bool) -> list[str]:
    """Lock the checkpoints until the end of the stack, and return the queries that can start.

    Raises:
        UserError: the port or a folder cannot be used, or another process runs a query. Spark would take seconds to
            start, and leave files.
    """
    if not available_now:
        require_port(settings.metrics_host, settings.metrics_port, "LOYALTY_METRICS_PORT")
    remedy = _PIPELINE_ARCHIVES if available_now and [*names] == ["archive"] else "stop it first"
    checkpoints = {name: QUERIES[name].checkpoint(settings) for name in names}
    usable, free = [], []
    for name in names:
        with _optional(name, names):
            if folder := local_folder(checkpoints[name]):
                require_writable(folder, FOLDERS.get(name, "LOYALTY_CHECKPOINT_DIR"))
            usable.append(name)
    for name in usable:  # a lock makes a file, so first check all folders
        with _optional(name, names):
            stack.enter_context(lock.hold(checkpoints[name], remedy))
            free.append(name)
    return free


@contextmanager
def _optional(name: str, names: Collection[str]) -> Iterator[None]:
    """Log an error of a start instead of raising it, if the other queries can run without this one.

    Without Kafka or the Schema Registry no query can run. Then the whole process starts again.
    """
    try:
        yield
    except (PublishError, SchemaRegistryUnavailableError):
        raise
    except (UserError, OSError, Py4JJavaError, PySparkException) as error:
        reason = summarize_java_error(str(error)) if isinstance(error, Py4JJavaError) else str(error)
        if not _runs_without(name, names, _without_plan(reason)):
            raise


def _runs_without(name: str, names: Collection[str], reason: str) -> bool:
    """Whether the other queries run without this one. Then log why."""
    is_optional = name in OPTIONAL and len(names) > 1
    if is_optional:
        announce(name, {})  # ArchiveFallsBehind needs a metric of the query, also if it has never run
        log.error("a query cannot run", query=name, reason=f"{reason}. {OPTIONAL[name]}")
    return is_optional


def _run(
    settings: Settings,
    names: Sequence[str],
    stack: ExitStack,
    stopping: threading.Event,
    *,
    available_now: bool,
    backfill: bool,
) -> int:
    # The first process of a container gets no signal that it does not handle. So this comes before everything slow.
    _handle_signals(stopping)
    require_broker(settings)  # Spark would need longer to notice, and its error is not clear.
    if not available_now:
        stack.enter_context(serve_health(settings, settings.metrics_port, REGISTRY, _find_problem))
    spark = spark_session(settings)
    stack.callback(spark.stop)
    _handle_signals(stopping)  # PySpark has replaced the handler of SIGINT by one that aborts all micro-batches.
    if backfill:
        forget_progress(spark, settings)
    listener: Any = ProgressMetrics()
    spark.streams.addListener(listener)
    ids = schema_ids(settings)
    queries: dict[str, StreamingQuery] = {}
    stack.callback(lambda: _stop_between_batches([*queries.values()], settings.stop_timeout))
    stack.callback(READY.set, 0)

    def start(name: str) -> None:
        queries.pop(name, None)
        with _optional(name, names):
            queries[name] = QUERIES[name].start(spark, ids, settings, available_now=available_now)

    # Watch the programme before the queries load it, so that no version is missed in between.
    reads_programme = any(QUERIES[name].reads_programme for name in names)
    watch = stack.enter_context(closing(ProgrammeWatch(settings))) if reads_programme else None
    for name in names:  # if a query refuses to start, the stack stops the others
        if stopping.is_set():
            break
        start(name)
    else:
        READY.set(1)
        log.info("pipeline ready", queries=list(queries))
        _watch(queries, start, None if available_now else watch, stopping)
    is_incomplete = len(queries) < len(names) or any(query.isActive for query in queries.values())
    has_failed = any(query.exception() for query in queries.values())
    if available_now and is_incomplete and not has_failed:
        log.error("stopped before the last record: run the command again, and it continues")
        return 1
    return int(has_failed)


def _handle_signals(stopping: threading.Event) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stopping.set())


def _find_problem() -> str | None:
    return None if REGISTRY.get_sample_value("loyalty_pipeline_ready") else "the queries start or stop; see the log"


def _watch(
    queries: dict[str, StreamingQuery],
    start: Callable[[str], None],
    programme: ProgrammeWatch | None,
    stopping: threading.Event,
) -> None:
    """Return after a stop signal, after the end of all queries, or after a failure of a query that is not optional.

    Start a query again if a Python worker failed, and the queries that read the programme if it has a new version.
    """
    restarts_left, turns = MAX_RESTARTS, count()
    while not stopping.wait(0.5):
        # A failed query stays active until the end of its clean-up, which can hang. So ask the active queries too, but
        # only each two seconds: an exception takes three calls of the JVM, and the programme two requests to Kafka.
        asks_all = next(turns) % 4 == 0
        active = {name for name, query in queries.items() if query.isActive}
        errors = {name: query.exception() for name, query in queries.items() if asks_all or name not in active}
        failed = {name: str(error) for name, error in errors.items() if error}
        for name, reason in failed.items():
            cause = next((each for each in WORKER_FAILURES if each in reason), None)
            if not restarts_left or cause is None or stopping.is_set():
                if not _runs_without(name, queries, _without_plan(reason)):
                    log.error("query failed", query=name, reason=_without_plan(reason))
                    return
                del queries[name]
            elif name not in active:  # Spark refuses a second query with this name
                restarts_left -= 1
                log.warning("query starts again", query=name, reason=cause)
                start(name)
        if not active and not failed:
            return
        if programme and asks_all and programme.has_changed():
            outdated = [name for name in queries if QUERIES[name].reads_programme]
            log.info("new version of the programme", queries=outdated)
            _stop_between_batches([queries[name] for name in outdated], timedelta(seconds=_RESTART_SECONDS))
            for name in outdated:
                if not stopping.is_set():
                    start(name)


def _without_plan(reason: str) -> str:
    """The error of a query and its causes in one line, without stack traces and Spark's plan (17 kB and more)."""
    lines = reason.partition("\n=== Streaming Query ===")[0].splitlines()
    return " | ".join(line for line in lines if line and not line[0].isspace())


def _stop_between_batches(queries: Sequence[StreamingQuery], timeout: timedelta) -> None:
    """Stop each query after its running micro-batch, also if another one would begin at once.

    Spark would interrupt a batch that it still plans, so wait until the batch runs. A batch that does not end in time
    is interrupted, and a restart replays it. While a broker hangs, Spark needs up to 20 seconds for the interruption.
    So the queries stop at the same time.
    """
    deadline = time.monotonic() + timeout.total_seconds()

    def wait_while(is_true: Callable[[], bool]) -> None:
        while is_true() and time.monotonic() < deadline:
            time.sleep(0.02)

    def stop_after_batch(query: StreamingQuery) -> None:
        has_failed = bool(query.exception())
        wait_while(lambda: plans_batch(query))
        begin_no_batch(query)
        wait_while(lambda: query.status["isTriggerActive"])
        stop(query)
        if not has_failed and (error := query.exception()):
            log.warning(
                "a query failed while it stopped; the next start repeats its batch", reason=_without_plan(str(error))
            )

    if queries:
        with ThreadPoolExecutor(len(queries)) as threads:
            list(threads.map(stop_after_batch, queries))  # the list raises the errors of the threads


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name="loyalty pipeline")
