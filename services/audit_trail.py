"""The audit trail: who did what, as records of the topic audit-trail. It names customers by pseudonyms.

The API writes in the background, because a request must not wait for the trail. A command of an operator writes its
record first, and does its work only if the broker has the record. Decision 0027 has the reasons.
"""

import os
import pwd
import queue
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import structlog
from confluent_kafka import KafkaError

from schemas.topics import AUDIT_TRAIL
from services.clock import now
from services.messaging.avro import Record, encoder
from services.messaging.headers import cloud_event
from services.messaging.publishing import Publisher, PublishError, connected_producer
from services.messaging.resending import ResendingProducer
from services.messaging.schema_ids import schema_ids
from services.messaging.topic_reader import decoded
from services.settings import Settings

log = structlog.get_logger(__name__)

CLIENT_ID = "loyalty-audit-trail"

MOST_WAITING = 10_000
"""The most records that wait while Kafka is not available. Further records go to the log only."""

CLOSE_SECONDS = 5.0
"""When a process ends, waiting records have this time to reach the broker."""

_ENDED = "the thread that sends records has ended"
_POLL_SECONDS = 0.1
_RETRY_SECONDS = 1.0


def audit_record(
    actor: str, action: str, outcome: str, source: str, *, customer: str = "", details: Mapping[str, str] | None = None
) -> Record:
    """A new record AuditRecord. See its schema for the fields."""
    return {
        "EventID": str(uuid.uuid4()),
        "ActionTime": now(),
        "Actor": actor,
        "Action": action,
        "Outcome": outcome,
        "Source": source,
        "Customer": customer,
        "Details": [{"Name": name, "Value": value} for name, value in (details or {}).items()],
    }


def _headers_of(record: Record) -> dict[str, str]:
    return cloud_event(record["EventID"], AUDIT_TRAIL.value)


def details_of(record: Record) -> dict[str, str]:
    return {each["Name"]: each["Value"] for each in record["Details"]}


class AuditTrail:
    """Writes records to the topic in its own thread. It keeps them while Kafka is not available."""

    def __init__(self, settings: Settings, on_lost: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            on_lost: is called for each record that does not reach the topic.
        """
        self._settings = settings
        self._on_lost = on_lost
        self._waiting: queue.Queue[Record] = queue.Queue(MOST_WAITING)
        self._close_time = float("inf")
        self._encode: Callable[[Record], bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="audit-trail", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Take a record. It never waits and never raises."""
        if not self._thread.is_alive():
            self._lose(record, _ENDED)
            return
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._lose(record, f"{MOST_WAITING} records wait already")

    def close(self) -> None:
        """Send the waiting records and stop."""
        self._close_time = time.monotonic() + CLOSE_SECONDS
        self._thread.join()

    def _run(self) -> None:
        try:
            producer = ResendingProducer(self._settings, CLIENT_ID, **{"queue.buffering.max.messages": MOST_WAITING})
            try:
                self._send(producer)
            finally:
                producer.close(max(0.0, min(CLOSE_SECONDS, self._close_time - time.monotonic())))
        finally:
            while not self._waiting.empty():
                self._lose(self._waiting.get(), _ENDED)

    def _send(self, producer: ResendingProducer) -> None:
        while self._close_time == float("inf") or not self._waiting.empty():
            producer.poll(0)
            try:
                record = self._waiting.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            problem: str | None = _ENDED  # if an unexpected error ends the thread
            try:
                problem = self._offer(producer, record)
            finally:
                if problem:
                    self._lose(record, problem)

    def _offer(self, producer: ResendingProducer, record: Record) -> str | None:
        """Give a record to librdkafka, and repeat this after an error. Returns the error if the process ends before."""
        problem = "the process ends" if time.monotonic() > self._close_time else self._produce(producer, record)
        while problem and time.monotonic() < self._close_time:
            producer.poll(_RETRY_SECONDS)
            problem = self._produce(producer, record)
        return problem

    def _produce(self, producer: ResendingProducer, record: Record) -> str | None:
        """Give a record to librdkafka. Returns the error if the caller must try again."""
        try:
            # The first record sends a request to the Schema Registry.
            self._encode = self._encode or encoder(AUDIT_TRAIL, schema_ids(self._settings))
            value = self._encode(record)
            producer.produce(
                self._settings.name_of(AUDIT_TRAIL),
                value,
                record["Actor"].encode(),
                list(_headers_of(record).items()),
                partial(self._on_delivery, record),
            )
        except UnicodeEncodeError as error:
            self._lose(record, str(error))  # all later attempts would fail too, and later records would wait
        # The errors of the registry's client, and of its HTTP library, have no common class.
        except Exception as error:  # noqa: BLE001
            return str(error)
        return None

    def _on_delivery(self, record: Record, error: KafkaError | None) -> None:
        if error is not None:
            self._lose(record, error.str())

    def _lose(self, record: Record, reason: str) -> None:
        self._on_lost()
        log.error("a record is not in the topic audit-trail, only in this log", id=record["EventID"], reason=reason)


@contextmanager
def audited(action: str, settings: Settings, **details: str) -> Iterator[dict[str, str]]:
    """Record an operator's command before the block runs, and again when the block has succeeded or failed.

    Yields the details, so that the block can add to them. Raises PublishError if the broker does not acknowledge the
    first record. Then the block does not run. An error of the second record is only logged, because the user would read
    it as an error of the command, and could repeat a command that has succeeded.

    Args:
        action: the command, for example ``loyalty keys create``.
        details: names and values that describe the command. They must not contain secrets or cards.
    """
    note = _outcome_recorder(action, settings, details)
    note("begun")

    def note_end(outcome: str) -> None:
        try:
            note(outcome)
        except PublishError as error:
            # The error also says to send the records again, which reads as advice to repeat the command.
            reason, _, _ = str(error).partition("; ")
            text = "the command has ended, but the topic audit-trail does not say how"
            log.warning(text, actor=operator(), action=action, outcome=outcome, details=details, reason=reason)

    try:
        yield details
    except BaseException:
        note_end("failed")
        raise
    note_end("done")


def announce(action: str, settings: Settings, **details: str) -> None:
    """Record only the start of a command, because another program will replace this process.

    See ``audited`` for the arguments. Raises PublishError if the broker does not take the record.
    """
    _outcome_recorder(action, settings, details)("begun")


def _outcome_recorder(action: str, settings: Settings, details: Mapping[str, str]) -> Callable[[str], None]:
    """A function that records an outcome.

    Both functions raise PublishError, for example if no broker answers or if the topic does not exist.
    """
    topic = settings.name_of(AUDIT_TRAIL)
    producer = connected_producer(settings, CLIENT_ID, [topic])
    encode = encoder(AUDIT_TRAIL, schema_ids(settings))

    def note(outcome: str) -> None:
        record = audit_record(operator(), action, outcome, socket.gethostname(), details=details)
        with Publisher(producer) as publisher:
            publisher.publish(topic, record["Actor"].encode(), encode(record), _headers_of(record))

    return note


def operator() -> str:
    """The actor of a command: the user of the operating system."""
    return f"operator:{user_name()}"


def user_name() -> str:
    """The name of the user who runs this process. It is not from LOGNAME or USER, which the user can set."""
    user = os.getuid()
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # a container can run as a number that no user has
        return f"{user}"


def read_trail(settings: Settings, skipped: Counter[str] | None = None) -> Iterator[Record]:
    """The records that the topic has now, also duplicates. See ``decoded`` for ``skipped`` and the errors."""
    return decoded(settings, AUDIT_TRAIL, CLIENT_ID, skipped)
