"""Keeps the queries of a process running."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

import structlog
from confluent_kafka import KafkaException
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from pipelines.driver.programme_watch import ProgrammeWatch
from pipelines.driver.stop import stop_between_batches
from pipelines.queries.query_table import QUERIES
from pipelines.runtime.query import without_plan
from pipelines.runtime.query_metrics import announce
from pipelines.sinks.foreach_batch import summarize_java_error
from services.clock import boot_seconds
from services.errors import UserError

log = structlog.get_logger()

WORKER_FAILURES = ("Python worker failed to connect back", "Python worker exited unexpectedly")
"""Errors of Spark after which a query starts again. Spark allows a Python process ten seconds to start, and no setting
changes that: a busy machine may need longer. A worker ends, for example, when the machine has no memory left."""

MAX_RESTARTS = 20
"""How often queries may fail with WORKER_FAILURES. A restart of the whole process would take much longer."""

_CLEAN_UP_SECONDS = 60.0
"""How long a query with one of WORKER_FAILURES may clean up before it starts again. A clean-up can hang."""

_RETRY_SECONDS = 3_600.0
"""How long an optional query that cannot run waits for its next start. Each start of a query leaves a thread and a
socket in Spark and in py4j (decision 59), so it must not start often."""

_RESTART_SECONDS = 20.0
"""How long a new version of the programme waits for a micro-batch to end. By default its notice is a minute."""


class QueryWatch:
    """Starts queries, and starts them again when they need it.

    Attributes:
        queries: by name, the last run of each query, without optional queries that cannot run now.
    """

    def __init__(
        self,
        names: Collection[str],
        start: Callable[[str], StreamingQuery],
        stopping: threading.Event,
        *,
        retries: bool,
        watch_programme: Callable[[], ProgrammeWatch] | None = None,
    ) -> None:
        """
        Args:
            names: the queries of this process, also those that cannot start now.
            start: starts a query. It can raise the errors of ``optional``.
            retries: whether an optional query that cannot run starts again after _RETRY_SECONDS.
            watch_programme: starts to watch the programme. It can raise the errors of ``optional``. None if no query
                starts again for a new version.
        """
        self.queries: dict[str, StreamingQuery] = {}
        self._names, self._start, self._stopping, self._retries = names, start, stopping, retries
        self._watch_programme = watch_programme
        self._programme: ProgrammeWatch | None = None
        self._next_starts: dict[str, float] = {}
        self._clean_ups: dict[str, float] = {}
        self._restarts_left = MAX_RESTARTS

    def start(self, names: Sequence[str]) -> bool:
        """Start these queries. Returns False if a stop signal came first.

        Then the remaining queries do not start: each start takes seconds, and a supervisor could kill the process
        meanwhile.
        """
        for name in names:
            if self._stopping.is_set():
                return False
            self.queries.pop(name, None)
            self._next_starts.pop(name, None)
            self._clean_ups.pop(name, None)
            with optional(name, self._names):
                if QUERIES[name].reads_programme and not self._programme and self._watch_programme:
                    # Before the query loads the programme, so that no version is missed in between.
                    self._programme = self._watch_programme()
                self.queries[name] = self._start(name)
            if name not in self.queries:
                self._retry_later(name)
        return True

    def close(self) -> None:
        """Stop to watch the programme."""
        if self._programme:
            self._programme.close()
            self._programme = None

    def watch(self) -> None:
        """Return after a stop signal, after the end of all queries, or after a failure of a query that is not optional.

        Start a query again if a Python worker failed, and the queries that read the programme if it has a new version.
        """
        for turn in count():
            if self._stopping.wait(0.5):
                return
            # A failed query stays active until the end of its clean-up, which can hang. So ask the active queries too,
            # but only each two seconds: an exception takes three calls of the JVM, and the programme two requests to
            # Kafka.
            asks_all = turn % 4 == 0
            active = {name for name, query in self.queries.items() if query.isActive}
            errors = {name: query.exception() for name, query in self.queries.items() if asks_all or name not in active}
            failed = {name: str(error) for name, error in errors.items() if error}
            if not all(self._survives(name, reason, is_active=name in active) for name, reason in failed.items()):
                return
            if not (active or failed or self._next_starts):
                return
            self.start([name for name, time in self._next_starts.items() if time <= boot_seconds()])
            if self._programme and asks_all:
                self._check_programme(self._programme)

    def _survives(self, name: str, reason: str, *, is_active: bool) -> bool:
        """Start a failed query again, now or later. Returns whether the process continues."""
        cause = next((each for each in WORKER_FAILURES if each in reason), None)
        if cause and self._restarts_left and not self._stopping.is_set():
            if not is_active:
                self._restarts_left -= 1
                log.warning("query starts again", query=name, reason=cause)
                self.start([name])
                return True
            # Spark refuses a second query with this name until the first one has ended.
            if name not in self._clean_ups:
                log.warning("a query has failed and starts again after its clean-up", query=name, reason=cause)
            if boot_seconds() - self._clean_ups.setdefault(name, boot_seconds()) < _CLEAN_UP_SECONDS:
                return True
            reason = f"its clean-up has not ended after {_CLEAN_UP_SECONDS:.0f} s: {reason}"
        if not is_optional(name, self._names):
            log.error("query failed", query=name, reason=without_plan(reason))
            return False
        self._give_up(name, without_plan(reason))
        return True

    def _give_up(self, name: str, reason: str) -> None:
        """Report an optional query that cannot run, and let it start again later."""
        _report(name, reason)
        del self.queries[name]
        self._retry_later(name)

    def _retry_later(self, name: str) -> None:
        if self._retries:
            self._next_starts[name] = boot_seconds() + _RETRY_SECONDS

    def _check_programme(self, programme: ProgrammeWatch) -> None:
        """Start the queries that read the programme again, if it has a new version.

        If this process cannot read the version, these queries stop. Raises UserError if one of them is not optional.
        """
        # In the order of the first start.
        readers = [name for name in self._names if name in self.queries and QUERIES[name].reads_programme]
        try:
            if not programme.has_changed():
                return
        except UserError as error:
            if not all(is_optional(name, self._names) for name in readers):
                raise
            self._stop(readers)
            self.close()
            for name in readers:
                self._give_up(name, str(error))
        else:
            log.info("new version of the programme", queries=readers)
            self._stop(readers)
            self.start(readers)

    def _stop(self, names: Sequence[str]) -> None:
        stop_between_batches([self.queries[name] for name in names], timedelta(seconds=_RESTART_SECONDS))


@contextmanager
def optional(name: str, names: Collection[str]) -> Iterator[None]:
    """Log an error of a start instead of raising it, if the other queries run without this one."""
    try:
        yield
    except (UserError, OSError, KafkaException, Py4JJavaError, PySparkException) as error:
        reason = summarize_java_error(str(error)) if isinstance(error, Py4JJavaError) else str(error)
        if not is_optional(name, names):
            raise
        _report(name, without_plan(reason))


def is_optional(name: str, names: Collection[str]) -> bool:
    """Whether the other queries of a process run without this one. A process of one query ends with it."""
    return bool(QUERIES[name].if_it_cannot_run) and len(names) > 1


def _report(name: str, reason: str) -> None:
    """Log why an optional query cannot run."""
    announce(name, {})  # ArchiveFallsBehind needs a metric of the query, also if it has never run
    log.error("a query cannot run", query=name, reason=f"{reason}. {QUERIES[name].if_it_cannot_run}")
