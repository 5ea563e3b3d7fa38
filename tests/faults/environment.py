"""A stack of processes, with methods to inject faults and to wait for progress."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from infra.demo.probes import LedgerReader, reached
from infra.local.processes import ManagedProcess, ProcessFailedError
from infra.local.stack import LocalStack, Service, private_settings
from schemas import topics
from schemas.topics import Topic
from services.messaging.administration import create_topics
from services.messaging.avro import encoder
from services.messaging.clients import consumer, replaced_if_lost
from services.messaging.resending import ResendingProducer
from services.messaging.schema_ids import schema_ids
from tests.faults.histories import Histories
from tests.support.builders import invoice
from tests.support.processes import SMALL_JVM, newest_batch

_TIMEOUT_SECONDS = 900.0
"""The longest wait for one condition: several times the duration of a restart on a busy machine."""

PROBE = "PROBE-"
"""The prefix of the invoice number and the card that prove a recovery."""

_WORKERS = "pyspark.worker"
"""An argument of Spark's daemon of Python workers."""

_POLL_SECONDS = 0.1
_LIVENESS_SECONDS = 10.0


class NoEvidenceError(AssertionError):
    """A condition did not hold in time. The message has the condition and the last log lines."""


class Environment:
    """A stack in a directory, and a supervisor that restarts processes that end, as systemd does.

    Args:
        timeout_seconds: the longest wait for one condition.
        changes: settings that differ from those of the other faults.

    Attributes:
        histories: what clerks and callers have done since the start of this stack, during all its faults. Only the
            complete history of an account explains its state.
        http: a client for all threads. A new client loads all certificates, which takes as long as dozens of requests.
        ledger: a reader of the database of the ledger.
        key: the API key of the probes, if the API requires one.
    """

    def __init__(
        self,
        directory: Path,
        api_instances: int = 2,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        **changes: object,
    ) -> None:
        self.settings = private_settings(
            directory,
            **{
                "spark_master": "local[2]",
                "spark_java_options": SMALL_JVM,
                "sales_interval": timedelta(seconds=2),
                "export_interval": timedelta(seconds=2),
                "max_offsets_per_trigger": 500,
                **changes,
            },
        )
        self.directory, self.histories = directory, Histories()
        self._timeout_seconds = timeout_seconds
        self.stack = LocalStack(directory, self.settings, api_instances)
        self.ledger = LedgerReader(self.settings.ledger_url)
        self._consumer = self._new_consumer()
        self.http = httpx.Client(limits=httpx.Limits(), trust_env=False)
        self._probes = 0
        self.key: str | None = None
        self._repeated = 0
        self._halted: set[str] = set()
        self._checked_at = 0.0

    def __enter__(self) -> Self:
        self.stack.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self.ledger.close()
        self.http.close()
        for process in self.stack.processes:
            if process.pid is not None:
                # A paused process could not end.
                os.kill(process.pid, signal.SIGCONT)
        self.stack.stop()

    def use_brokers(self, bootstrap_servers: str, processes: list[ManagedProcess]) -> None:
        """Use these running brokers instead of the broker of the stack. Call this before the start."""
        brokers = {"kafka_bootstrap_servers": bootstrap_servers}
        self.settings = self.settings.model_copy(update=brokers)
        stack = self.stack
        for service in stack.services:
            # The dataclass is frozen. Only this fault changes its settings.
            object.__setattr__(service, "settings", service.settings.model_copy(update=brokers))
        stack.settings, stack.broker.process = self.settings, processes[-1]
        self._consumer.close()
        self._consumer = self._new_consumer()
        create_topics(self.settings)

    def until(self, awaited: str, condition: Callable[[], bool]) -> None:
        """Poll a condition, and supervise the processes meanwhile. Raises NoEvidenceError after the timeout."""
        deadline = time.monotonic() + self._timeout_seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(process.last_lines() for process in self.stack.processes)
                seconds = self._timeout_seconds
                raise NoEvidenceError(f"the condition did not hold within {seconds:.0f} s: {awaited}\n{logs}")
            self.supervise()
            time.sleep(_POLL_SECONDS)

    def halt(self, service: Service, *, orderly: bool = True) -> None:
        """Stop or kill a service. The supervisor does not restart it until ``resume``."""
        self._halted.add(service.process.name)
        if orderly:
            service.stop()
        else:
            service.kill()

    def resume(self, service: Service) -> None:
        self._halted.discard(service.process.name)
        service.start()

    def supervise(self) -> None:
        """Restart services that ended and, every few seconds, services whose liveness check fails."""
        is_time = time.monotonic() > self._checked_at + _LIVENESS_SECONDS
        if is_time:
            self._checked_at = time.monotonic()
        for service in self.stack.services:
            is_down = service.process.pid is None or (is_time and service in self.stack.apis and self._is_dead(service))
            if is_down and service.process.name not in self._halted:
                with contextlib.suppress(ProcessFailedError):
                    self.restart(service)

    def _is_dead(self, api: Service) -> bool:
        """Whether the liveness check fails. An instance that does not answer counts as alive: it may only be slow."""
        try:
            answer = self.http.get(f"{api.url}/livez", timeout=2)
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.SERVICE_UNAVAILABLE

    def restart(self, service: Service) -> None:
        """Restart a service. Does not wait until it is ready, because other services may need a restart, too."""
        service.process.kill()
        service.start(lambda: True)

    def ends(self, topic: Topic) -> dict[int, int]:
        """The end offset of each partition. Raises KafkaException while no broker answers."""
        name = self.settings.name_of(topic)
        # Ask the broker for the partitions, because a fault adds one.
        numbers = self._consumer.list_topics(name, timeout=5).topics[name].partitions
        partitions = [TopicPartition(name, number) for number in numbers]
        return {each.partition: self._consumer.get_watermark_offsets(each, timeout=5)[1] for each in partitions}

    def written(self, topic: Topic) -> int | None:
        """The number of records written to a topic. None while no broker answers."""
        try:
            return sum(self.ends(topic).values())
        except KafkaException:
            self._consumer = replaced_if_lost(self._consumer, self._new_consumer, self.settings)
            return None

    def _new_consumer(self) -> Consumer:
        return consumer(self.settings, "faults-watcher", log_level=0)

    def until_written(self, topic: Topic, more: int = 1) -> None:
        """Wait until the topic has this number of additional records."""
        self.until("the broker", lambda: self.written(topic) is not None)
        start = self.written(topic) or 0
        self.until(f"{more} records more on {topic.name}", lambda: (self.written(topic) or 0) >= start + more)

    def recovered(self) -> float:
        """Publish an invoice of a new customer, and wait until the API serves its points. Returns the seconds."""
        self._probes += 1
        card, started = f"{PROBE}{self.directory.name}-{self._probes}", time.monotonic()
        client = ResendingProducer(self.settings, "faults-probe", log_level=0)
        value = encoder(topics.POS_INVOICES, schema_ids(self.settings))(invoice(card, card))
        client.produce(self.settings.name_of(topics.POS_INVOICES), value, b"STR1", [], lambda _: None)

        def is_acknowledged() -> bool:
            client.poll(0.1)
            return not len(client)

        self.until("the till's acknowledgement", is_acknowledged)
        self.until(f"the balance of {card}", lambda: self.balance(card) == "2.00")
        return time.monotonic() - started

    def newly_repeated(self, repeated: int) -> int:
        """The number of duplicates by id since the last call. ``repeated`` is their current number in all outputs."""
        new, self._repeated = repeated - self._repeated, repeated
        return new

    def balance(self, card: str) -> str | None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        for api in self.stack.apis:
            with contextlib.suppress(httpx.HTTPError):
                url = f"{api.url}/v1/customers/{card}/balance"
                answer = self.http.get(url, headers=headers, timeout=5)
                if answer.status_code == httpx.codes.OK:
                    return str(answer.json()["TotalLoyaltyPoints"])
        return None

    def settle(self) -> None:
        """Wait until every reader has read to the end, in the order of the dataflow."""
        self.until("the broker", lambda: self.written(topics.POS_INVOICES) is not None)
        for query in ("fan-out", "loyalty", "sales"):
            self._until_passed(Path(self.settings.checkpoint_dir, query), topics.POS_INVOICES)
        for _ in range(2):  # the second round waits for the credits of transfers
            self._until_passed(Path(self.settings.checkpoint_dir, "loyalty"), topics.LOYALTY_COMMANDS)
        self._until_passed(Path(self.settings.export_dir, "_checkpoint"), topics.HADOOP)
        entries, balances = self.ends(topics.LOYALTY), self.ends(topics.LOYALTY_BALANCES)
        self.until(f"the ledger at {entries}", lambda: reached(self.ledger.positions(), entries))
        for api in self.stack.apis:
            self.until(f"{api.process.name} at {balances}", lambda api=api: self._has_read(api, balances))  # type: ignore[misc]

    def _until_passed(self, checkpoint: Path, topic: Topic) -> None:
        """Wait until a query has committed all current records of a topic."""
        name, ends = self.settings.name_of(topic), self.ends(topic)
        self.until(f"{checkpoint.name} at {ends}", lambda: reached(committed(checkpoint).get(name, {}), ends))

    def _has_read(self, api: Service, ends: dict[int, int]) -> bool:
        """Whether an instance is ready and has applied its balances up to these offsets."""
        report = self.report(api)
        held = [each for each in report.get("partitions", ()) if each["store"] == "customer-balances"]
        return bool(report.get("ready")) and all(each["position"] >= ends[each["partition"]] for each in held)

    def report(self, api: Service, path: str = "/readyz") -> dict[str, Any]:
        """The JSON response of an instance. Empty while it does not answer."""
        with contextlib.suppress(httpx.HTTPError, ValueError):
            found: dict[str, Any] = self.http.get(f"{api.url}{path}", timeout=5).json()
            return found
        return {}

    def python_workers(self) -> dict[psutil.Process, float]:
        """Spark's Python workers, which are forks of its daemon, and the processor seconds of each."""
        used: dict[psutil.Process, float] = {}
        pid = self.stack.pipeline.process.pid
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(pid).children(recursive=True) if pid else ():
                if _is_worker(each):
                    used[each] = sum(each.cpu_times()[:2])
        return used


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        parent = process.parent()
        # A worker is a fork of the daemon, so both have this argument. The parent of the daemon is the JVM.
        return parent is not None and _WORKERS in process.cmdline() and _WORKERS in parent.cmdline()
    return False


def committed(checkpoint: Path) -> dict[str, dict[int, int]]:
    """The end offsets of the newest committed micro-batch of a query, by topic and partition."""
    newest = newest_batch(checkpoint, "commits")
    if newest is None:
        return {}
    found: dict[str, dict[int, int]] = {}
    for line in (checkpoint / "offsets" / str(newest)).read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError, AttributeError):  # the lines of the version and the clock have no topics
            for topic, partitions in json.loads(line).items():
                found[topic] = {int(partition): offset for partition, offset in partitions.items()}
    return found


@contextlib.contextmanager
def paused(*pids: int) -> Iterator[None]:
    """Pause processes with SIGSTOP during the block, like a long garbage collection."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
