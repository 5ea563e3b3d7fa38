"""Starts the pipeline, the API and the ledger as operators do, and changes checkpoints as a crash does."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import httpx
from prometheus_client import REGISTRY
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import OperationalError

from infra.local import jars
from infra.local.java import find_java_home
from infra.local.ports import HOST, free_port
from infra.local.stack import environment_of
from services.ledger.database import reading_engine
from services.ledger.tables import ENTRY
from services.programmes.topic import load_programmes
from services.pseudonyms import pseudonyms
from services.settings import Settings
from services.tls import client_context
from tests.support.builders import IDS
from tests.support.waiting import DEADLINE_SECONDS, POLL_SECONDS, REPORT_POLL_SECONDS, TOPIC_POLL_SECONDS, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from pipelines.reconciliation.context import Context
    from pipelines.runtime.query import Query

SMALL_JVM = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Java options for little memory and a quick start.

With only the first compiler, the default code cache is too small for all queries. Without the archive of Spark's
classes, a start with a first job takes 23 CPU seconds, of which Java needs 4 to verify bytecode.
"""

ROOT = Path(__file__).parents[2]

_PIPELINE_SECONDS = 480
"""The longest wait for one condition of a pipeline on a busy machine."""


class ApiProcess:
    """One API instance on a free port. It writes its log to a file, because a full pipe would block it."""

    def __init__(self, settings: Settings, log: Path, checkout: Path = ROOT) -> None:
        """Start the process.

        Args:
            checkout: the folder of the code.
        """
        port = free_port()
        options = ["--host", HOST, "--port", str(port), "--state-dir", str(settings.state_dir)]
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "api", *options],
                cwd=checkout,
                env=_environment(settings, checkout),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.url = f"{'https' if settings.api_certificate_file else 'http'}://{HOST}:{port}"
        self._tls = client_context(settings)
        self._is_stopped = False
        self._of_thread = threading.local()
        self._clients: list[httpx.Client] = []

    @property
    def http(self) -> httpx.Client:
        """The client of the calling thread.

        Threads must not share a client. A pool with more than 20 connections closes idle ones, and a connection that
        the pool has just given to another thread still counts as idle.

        Raises:
            AssertionError: the process has ended, although the test did not stop it.
        """
        status = None if self._is_stopped else self._process.poll()
        assert status is None, f"the API process ended with status {status}:\n{self._log.read_text()}"
        if not hasattr(self._of_thread, "http"):
            self._of_thread.http = httpx.Client(base_url=self.url, timeout=40, trust_env=False, verify=self._tls)
            self._clients.append(self._of_thread.http)
        client: httpx.Client = self._of_thread.http
        return client

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(
        self, condition: Callable[[dict[str, Any]], bool], poll: float = REPORT_POLL_SECONDS
    ) -> dict[str, Any]:
        """Poll /readyz until its report satisfies the condition. Returns that report."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                report: dict[str, Any] = self.http.get("/readyz").json()
                if condition(report):
                    return report
            time.sleep(poll)
        raise AssertionError(f"the condition did not hold within {DEADLINE_SECONDS:.0f} s:\n{self._log.read_text()}")

    def wait_until_ready(self) -> dict[str, Any]:
        """Wait until the instance is ready and no partition lags."""
        return self.wait_until(lambda report: report["ready"] and not any(p["lag"] for p in report["partitions"]))

    def owned(self, store: str) -> list[int]:
        """The active partitions of a store, from the report of the instance. It shows an assignment a moment later."""
        partitions = self.http.get("/v1/instances/local").json()["partitions"]
        return [each["partition"] for each in partitions if each["store"] == store and each["role"] == "active"]

    def balance(self, card: str) -> httpx.Response:
        return self.http.get(f"/v1/customers/{card}/balance")

    def points(self, cards: Iterable[str]) -> dict[str, str]:
        """The served points by card. Leaves out unknown customers."""
        responses = {card: self.balance(card) for card in cards}
        assert {each.status_code for each in responses.values()} <= {200, 404}
        return {card: each.json()["TotalLoyaltyPoints"] for card, each in responses.items() if each.status_code == 200}

    def pause(self) -> None:
        """Send SIGSTOP. The process keeps its connections, and does not notice that time passes."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def log_lines(self, *parts: str) -> list[str]:
        """The lines of the log that contain all of these parts."""
        return [line for line in self._log.read_text().splitlines() if all(part in line for part in parts)]

    def kill(self) -> None:
        self._is_stopped = True
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)

    def wait(self) -> int:
        """Wait until the process ends. Returns the exit status."""
        self._is_stopped = True
        return self._process.wait(DEADLINE_SECONDS)

    def terminate(self) -> int:
        """Send SIGTERM and wait until the process ends. Returns the exit status."""
        self._is_stopped = True
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(DEADLINE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                self.http.get("/metrics", timeout=1)  # so that tests/support/outputs.py searches the metrics
            self.kill()
        for client in self._clients:
            client.close()


def _environment(settings: Settings, checkout: Path) -> dict[str, str]:
    """The environment of an instance. Code of another checkout gets only the settings that it knows."""
    environment = environment_of(settings)
    if checkout == ROOT:
        return environment
    program = [sys.executable, "-c", "from services.settings import Settings; print(*Settings.model_fields)"]
    known = subprocess.run(program, cwd=checkout, capture_output=True, text=True, check=True).stdout.upper().split()
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("LOYALTY_") or name.removeprefix("LOYALTY_") in known
    }


def balance_partitions(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The partitions of the store ``customer-balances`` in a report of /readyz, in the same order."""
    return [each for each in report["partitions"] if each["store"] == "customer-balances"]


def wait_until_shared(instances: list[ApiProcess]) -> None:
    """Wait until all instances know that each of them owns partitions, and until each one serves its partitions."""

    def is_shared() -> bool:
        found = [each.http.get("/v1/stores/decisions/metadata").json()["instances"] for each in instances]
        shares = [{holder["url"]: holder["active"] for holder in holders} for holders in found]
        is_known = all(len(share) == len(instances) and all(share.values()) for share in shares)
        return is_known and all(each.owned("decisions") == sorted(shares[0][each.url]) for each in instances)

    wait_for("instances that share all partitions", is_shared, poll=REPORT_POLL_SECONDS)


def start_as_release_0_1(query: "Query", settings: Settings) -> None:
    """Write the manifest of a new checkpoint as release 0.1 did. The first run then creates state in its format."""
    from pipelines.checkpoints.manifest import MANIFEST

    made_with = {
        "query": query.name,
        "source": ", ".join(map(settings.name_of, query.sources)),
        "shuffle_partitions": str(settings.shuffle_partitions),
        **query.fixed(settings),
    }
    folder = Path(query.checkpoint(settings))
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps(made_with), encoding="utf-8")


def run_to_the_end(spark: "SparkSession", settings: Settings, *queries: "Query") -> "list[StreamingQueryProgress]":
    """Run the queries until they have read all input. Returns the reports of their micro-batches.

    Restarts a query whose Python workers failed, which can happen on a busy machine.
    """
    from pyspark.errors import StreamingQueryException

    from pipelines.driver.watch import MAX_RESTARTS, WORKER_FAILURES

    def start(query: "Query") -> "StreamingQuery":
        return query.start(spark, IDS, settings, available_now=True)

    restarts_left = MAX_RESTARTS
    running = [(query, start(query)) for query in queries]
    reports: list[StreamingQueryProgress] = []
    while running:
        query, started = running.pop()
        try:
            started.awaitTermination()
            reports += started.recentProgress
        except StreamingQueryException as error:
            if not restarts_left or not any(each in str(error) for each in WORKER_FAILURES):
                raise
            restarts_left -= 1
            running.append((query, start(query)))
    return reports


def dead_letters_counted(spark: "SparkSession", settings: Settings, query: "Query") -> float:
    """Run a query to the end of its input. Returns the increase of its metric of dead letters."""
    from pipelines.runtime.query_metrics import report

    def counted() -> float:
        return REGISTRY.get_sample_value("loyalty_query_dead_letters_total", {"query": query.name}) or 0.0

    before = counted()
    for progress in run_to_the_end(spark, settings, query):
        report(json.loads(progress.json))
    return counted() - before


def reconciliation_context(spark: "SparkSession", settings: Settings) -> "Context":
    """The context of an audit or rebuild with these settings."""
    from pipelines.reconciliation.context import Context

    return Context(spark, settings, IDS, load_programmes(settings), pseudonyms(settings.pseudonym_key_file))


def spark_process_settings(settings: Settings) -> Settings:
    """Settings for another process that starts Spark beside the tests: two cores and little memory."""
    return settings.model_copy(
        update={
            "spark_master": "local[2]",
            "spark_jars_dir": jars.folder("spark"),
            "spark_driver_memory": "700m",
            "spark_java_options": SMALL_JVM,
        }
    )


def start_pipeline(settings: Settings, log: IO[str], *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start ``python -m pipelines`` in a new session, so that a test can kill it with all its children."""
    complete = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "LOYALTY_TOPIC_PREFIX": settings.topic_prefix,
        "LOYALTY_CHECKPOINT_DIR": settings.checkpoint_dir,
        "LOYALTY_EXPORT_DIR": settings.export_dir,
        "LOYALTY_ARCHIVE_DIR": settings.archive_dir,
        "LOYALTY_SALES_INTERVAL": "PT1S",
        "LOYALTY_EXPORT_INTERVAL": "PT1S",
        "LOYALTY_ARCHIVE_INTERVAL": "PT1S",
        "LOYALTY_METRICS_PORT": str(free_port()),
        "LOYALTY_SHUFFLE_PARTITIONS": str(settings.shuffle_partitions),
        "LOYALTY_SPARK_MASTER": "local[2]",
        "LOYALTY_SPARK_JAVA_OPTIONS": SMALL_JVM,
        "LOYALTY_SPARK_JARS_DIR": str(jars.folder("spark")),
        **environment,
    }
    command = [sys.executable, "-m", "pipelines", *arguments]
    return subprocess.Popen(command, env=complete, stdout=log, stderr=log, start_new_session=True)


def wait_until(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], log: IO[str], poll: float = TOPIC_POLL_SECONDS
) -> None:
    """Poll a condition while the process runs. Fails with the end of its log if it ends or after the timeout."""
    deadline = time.monotonic() + _PIPELINE_SECONDS
    while not condition():
        assert process.poll() is None, Path(log.name).read_text(encoding="utf-8")[-4000:]
        assert time.monotonic() < deadline, Path(log.name).read_text(encoding="utf-8")[-4000:]
        time.sleep(poll)


@contextlib.contextmanager
def running_ledger(settings: Settings, entries: int, log: Path) -> Iterator[None]:
    """Run ``python -m services.ledger``. Enters the block when the ledger has this number of entries."""
    environment = environment_of(settings.model_copy(update={"ledger_metrics_port": free_port()}))
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.ledger"], env=environment, stdout=output, stderr=output
        )
    engine = reading_engine(settings.ledger_url)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while _entry_count(engine) < entries:
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(POLL_SECONDS)
        yield
    finally:
        engine.dispose()
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def _entry_count(engine: Engine) -> int:
    try:
        with engine.connect() as connection:
            return int(connection.scalar(select(func.count()).select_from(ENTRY)) or 0)
    except OperationalError:  # the ledger has not created its tables yet
        return 0


def delete_newest_commit(checkpoint: str | Path) -> int:
    """Delete the newest commit of a checkpoint. Returns the number of its micro-batch.

    Spark then repeats the micro-batch, as after a crash between the sink and the commit.
    """
    newest = max(_batches(checkpoint, "commits"), key=lambda path: int(path.name))
    _delete([newest])
    return int(newest.name)


def delete_newest_commit_with_records(checkpoint: str | Path) -> int:
    """Delete the newest commit of a micro-batch that read records from Kafka, and everything that came after it.

    Returns the number of that micro-batch. The last micro-batches of the loyalty query can contain only the time of the
    clock, so their repetition would write nothing.

    A crash never has this effect. Spark writes the offsets of a micro-batch before a task of it writes state. So after
    a crash, a micro-batch with state still has its offsets. Spark repeats it with the same records and the same time,
    from the same version of the state, and writes the same next version, also over parts that exist already.

    This function also deletes the offsets of later micro-batches. Their numbers are used again, for other state with
    the same versions. So it must delete their state, too: Spark loads the newest snapshot that is not newer than the
    version, and this could be one of a deleted micro-batch. A process that still runs could upload such a snapshot
    later. This is unlikely, because there is a snapshot only for every tenth version.
    """
    offsets = sorted(_batches(checkpoint, "offsets"), key=lambda path: int(path.name))
    while len(offsets) > 1 and _kafka_offsets(offsets[-1]) == _kafka_offsets(offsets[-2]):
        newest = offsets.pop()
        _delete([newest, newest.parent.parent / "commits" / newest.name])
    repeated = delete_newest_commit(checkpoint)
    _delete([file for file in Path(checkpoint, "state").rglob("*") if _state_version(file) > repeated + 1])
    return repeated


def _state_version(file: Path) -> int:
    """The version of a file of the state store; 0 for other files. Micro-batch n writes version n + 1."""
    found = re.fullmatch(r"(\d+)(_[\w-]+)?\.(changelog|zip|delta|snapshot)", file.name)
    return int(found[1]) if found else 0


def _kafka_offsets(batch: Path) -> list[dict[str, Any]]:
    """The offsets by topic and partition. The first two lines are the version and the metadata of the micro-batch."""
    sources = [json.loads(line) for line in batch.read_text(encoding="utf-8").splitlines()[2:]]
    return [each for each in sources if all(isinstance(partitions, dict) for partitions in each.values())]


def delete_all_batches_but_the_first(checkpoint: str | Path) -> None:
    """Make Spark forget all micro-batches after the first. It then repeats them from the state after the first one."""
    _delete([path for log in ("commits", "offsets") for path in _batches(checkpoint, log) if path.name != "0"])


def newest_batch(checkpoint: str | Path, log: str) -> int | None:
    """The number of the newest micro-batch in ``offsets`` or ``commits`` of a checkpoint. None if there is none."""
    return max((int(path.name) for path in _batches(checkpoint, log)), default=None)


def _batches(checkpoint: str | Path, log: str) -> list[Path]:
    return [path for path in Path(checkpoint, log).glob("[0-9]*") if path.name.isdigit()]


def _delete(files: list[Path]) -> None:
    for file in files:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
