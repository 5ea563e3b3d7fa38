"""Reads Kafka partitions in batches from positions that the caller stores, and reconnects after errors."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple, Self, cast

import stamina
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from services.messaging import clients
from services.settings import Settings

log = structlog.get_logger(__name__)

NO_ANSWER = (
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - the code has no other name
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TRANSPORT,  # noqa: SLF001
)
"""The codes of errors after which librdkafka usually connects again by itself."""

_PROBE_SECONDS = 2.0
_LONGEST_BACKOFF_SECONDS = 2.0


class Batch(NamedTuple):
    """What one read returns. The keys are partitions: topic and number.

    Attributes:
        records: the records of each partition, in the order of their offsets.
        ends: the end offset of each partition whose end was reached (only with ``enable.partition.eof``). It can be
            above the last record, because transaction markers and compacted records have offsets too.
    """

    records: dict[tuple[str, int], list[Message]]
    ends: dict[tuple[str, int], int]


class LogReader:
    """Reads partitions with one consumer.

    The caller stores its own positions, for example in a database transaction with the results. So an offset that the
    broker does not have is an error by default: a jump to another offset would lose or repeat records.
    A member of a consumer group passes ``group.id`` and ``auto.offset.reset``, and subscribes with ``consumer``.

    Attributes:
        consumer: the Kafka consumer, from ``__enter__`` to ``__exit__``. The caller assigns the partitions to it.
        connected: whether ``connect`` has succeeded since the last error.
        error: why the reader cannot read now, in one line; None if it can. ``run`` clears it when ``poll_once`` has
            succeeded. A caller that calls ``read`` without ``run`` clears it after ``read``.
        last_step_time: when ``run`` started its last step, in seconds of ``time.monotonic``.
    """

    consumer: Consumer

    def __init__(
        self,
        settings: Settings,
        client_id: str,
        *,
        retry_on: tuple[type[Exception], ...] = (),
        **options: clients.Option,
    ) -> None:
        """Prepare a reader.

        Args:
            retry_on: errors after which ``run`` reconnects, besides KafkaException.
            options: options of librdkafka, for example ``enable.partition.eof``.
        """
        self._settings = settings
        self._client_id = client_id
        self._retry_on: tuple[type[Exception], ...] = (KafkaException, *retry_on)
        self._options = {"auto.offset.reset": "error", "error_cb": self._note_client_error, **options}
        self._stopping = threading.Event()
        self.connected = False
        self._error: str | None = None
        self._reported: KafkaError | None = None
        self._unanswered_since: float | None = None
        self._next_probe = 0.0
        self.last_step_time = time.monotonic()

    def __enter__(self) -> Self:
        self.consumer = self._new_consumer()
        self._note_answer()
        return self

    def __exit__(self, *_: object) -> None:
        self.connected = False
        clients.close(self.consumer)

    @property
    def error(self) -> str | None:
        return self._error

    @error.setter
    def error(self, error: str | None) -> None:
        if error and not self._error:
            brokers = self._settings.kafka_bootstrap_servers
            log.warning("cannot read now, and tries again", client=self._client_id, brokers=brokers, reason=error)
        elif self._error and not error:
            log.info("reads again", client=self._client_id)
        self._error = error

    def renew(self) -> bool:
        """Replace the consumer if it has lost all brokers. Returns whether it was replaced.

        The new consumer has no partitions and no subscription.
        """
        if self._unanswered_since is None or time.monotonic() < self._unanswered_since + clients.LOST_SECONDS:
            return False
        self._unanswered_since = time.monotonic()
        before = self.consumer
        self.consumer = clients.replaced_if_lost(before, self._new_consumer, self._settings)
        if self.consumer is before:
            return False
        self._note_answer()
        return True

    def run(self, connect: Callable[[], None], poll_once: Callable[[], None]) -> None:
        """Call ``connect``, then ``poll_once`` repeatedly, until ``stop``.

        Both may raise KafkaException or an error of ``retry_on``. The reader then waits, and calls ``connect`` again:
        it must find the stored positions and assign them. Any other error ends the run and is raised.
        """
        with self:
            while not self._stopping.is_set():
                # Each step has a new retry context, so that the wait is short again after a success.
                for attempt in stamina.retry_context(
                    on=self._retry_on, attempts=None, timeout=None, wait_max=_LONGEST_BACKOFF_SECONDS
                ):
                    with attempt:
                        self._step(connect, poll_once)

    def stop(self) -> None:
        """Make ``run`` return after its current step."""
        self._stopping.set()

    def read(self, max_records: int, timeout_seconds: float) -> Batch:
        """Wait for a record, then return it with all records that have arrived already.

        Returns an empty batch after the timeout. Raises KafkaException for an error of the client or of a partition.
        """
        batch = Batch(defaultdict(list), {})
        first = self.consumer.poll(timeout_seconds)
        if first is None:
            is_in_doubt = self.error or self._reported or self._unanswered_since
            if is_in_doubt or time.monotonic() > self._next_probe:
                self._probe()
            return batch
        for message in [first, *self.consumer.consume(max_records - 1, 0)]:
            # The type of these methods includes None for messages that do not come from a consumer.
            partition = cast(tuple[str, int], (message.topic(), message.partition()))
            error = message.error()
            if error is None:
                batch.records[partition].append(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the code has no other name
                batch.ends[partition] = cast(int, message.offset())
            else:
                if error.code() in NO_ANSWER:
                    self._note_no_answer()
                raise KafkaException(error)
        self._note_answer()
        return batch

    def end_offset(self, topic: str, partition: int) -> int:
        """The end offset that came with the last fetch; negative if it is not known yet."""
        return self.consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)[1]

    def _new_consumer(self) -> Consumer:
        return clients.consumer(self._settings, self._client_id, **self._options)

    def _step(self, connect: Callable[[], None], poll_once: Callable[[], None]) -> None:
        self.last_step_time = time.monotonic()
        if self._stopping.is_set():
            return
        try:
            if not self.connected:
                if self._unanswered_since is not None and not self.renew():
                    self._probe()
                connect()
                self.connected = True
            poll_once()
            # ``connect`` and ``read`` do not clear the error: what ``poll_once`` does with the records can fail again.
            self.error = None
        except self._retry_on as error:
            self.connected, self.error = False, _in_one_line(error)
            if isinstance(error, KafkaException) and error.args[0].code() in NO_ANSWER:
                self._note_no_answer()
            raise

    def _probe(self) -> None:
        """Ask a broker for an answer. librdkafka does not report that it has connected again.

        Raises KafkaException if no broker answers, and an error was reported or LOST_SECONDS have passed.
        """
        reported, self._reported = self._reported, None
        try:
            self.consumer.list_topics(timeout=_PROBE_SECONDS)
        except KafkaException as error:
            since = self._note_no_answer()
            if reported or self.error or time.monotonic() > since + clients.LOST_SECONDS:
                # The reported error says more, for example that the password is wrong. This error is only a timeout.
                self.error = _explained(reported) if reported else self.error or _explained(error.args[0])
                raise
        else:
            self._note_answer()

    def _note_answer(self) -> None:
        self._unanswered_since = None
        self._next_probe = time.monotonic() + clients.LOST_SECONDS

    def _note_no_answer(self) -> float:
        """Returns the time of the first missing answer."""
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()
        return self._unanswered_since

    def _note_client_error(self, error: KafkaError) -> None:
        # A probe must confirm the error: it can be older than a connection that works, or concern one of many brokers.
        self._reported = error


def _in_one_line(error: Exception) -> str:
    if isinstance(error, KafkaException):
        return _explained(error.args[0])
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _explained(error: KafkaError) -> str:
    return f"{'Kafka does not answer' if error.code() in NO_ANSWER else 'Kafka'}: {error.str()}"
