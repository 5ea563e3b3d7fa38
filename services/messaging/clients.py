"""Creates Kafka clients. Each kind is configured here only."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from schemas.access import READERS
from services.settings import Settings

log = structlog.get_logger(__name__)

# Java and Spark choose the partition of a key by murmur2, librdkafka by CRC32. All writers must choose the same one.
_PARTITIONER = "murmur2_random"


Client = Consumer | Producer | AdminClient

Option = str | int | float | bool | Callable[..., Any]
"""A value of an option of librdkafka, or a callback."""


def connection(settings: Settings) -> dict[str, Any]:
    """The options of librdkafka that every client shares: addresses, protocol and credentials.

    librdkafka checks that the certificate names the host.
    """
    options: dict[str, Any] = {
        "bootstrap.servers": settings.kafka_bootstrap_servers,
        "security.protocol": settings.kafka_security_protocol,
    }
    if settings.kafka_security_protocol.endswith("SSL") and settings.kafka_ssl_ca_location:
        options["ssl.ca.location"] = str(settings.kafka_ssl_ca_location)
    if settings.kafka_security_protocol.startswith("SASL_"):
        options |= {
            "sasl.mechanism": settings.kafka_sasl_mechanism,
            "sasl.username": settings.kafka_sasl_username,
            "sasl.password": settings.kafka_password,
        }
    return options


class ConnectionDiagnosis:
    """Explains why a client cannot connect: no answer, a wrong password, or a certificate that is not trusted.

    librdkafka reports the cause only to ``error_cb``. The calls themselves only time out.
    """

    def __init__(self) -> None:
        self._reason: str | None = None

    def on_error(self, error: KafkaError) -> None:
        """The callback of the option ``error_cb``. librdkafka calls it when the client is polled."""
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):  # noqa: SLF001 - the codes have no other names
            _, _, self._reason = error.str().partition(" (after ")[0].partition(": ")

    def explain(self, settings: Settings) -> str:
        """The message for the user after a call has failed, in one line."""
        brokers = settings.kafka_bootstrap_servers
        if self._reason is None:
            return (
                f"no Kafka broker answers at {brokers}: start Kafka, or set LOYALTY_KAFKA_BOOTSTRAP_SERVERS to its "
                "address"
            )
        return f"the Kafka broker at {brokers} cannot be used: {self._reason}"


class _DropConnectionLines(logging.Filter):
    """Drops log lines about connections. While no broker answers, librdkafka writes twenty a second.

    ``LogReader`` logs once that no broker answers, and once that a broker answers again.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        facility = record.args[0] if isinstance(record.args, tuple) and record.args else None
        return facility not in ("FAIL", "ERROR", "CONNECT", "REQTMOUT")


LARGEST_REQUEST_BYTES = 64 * 2**20
"""The largest record of a producer before compression. The broker limits the size after compression. This limit leaves
room for a dead letter, which has more headers than its record, and for the replay of a dead letter.
"""

LOST_SECONDS = 10.0
"""After this number of seconds without an answer, a client may have lost all brokers (see ``has_lost_all_brokers``).
"""

CLOSE_SECONDS = 7.0
"""The longest time to close a consumer. Without an answer of the broker, librdkafka leaves a group after five seconds.
"""

# A healthy client must connect within this time after Kafka has returned.
_PROBE_SECONDS = 2.0
_REPORT_SECONDS = 1.0
_POLL_SECONDS = 0.1
_LONGEST_BACKOFF_MS = 1_000
# A broker that hangs keeps its connections. With the default of 60 s, a reader continued 62 s after its leader had
# hung, and a publication failed after 31 s, although Kafka had elected another leader. With 10 s, both continue after
# 11 s. Admin clients keep the default: a broker can need longer to create all topics.
_HANGING_BROKER_MS = 10_000

_LIBRARY_LOG = logging.getLogger("librdkafka")
_LIBRARY_LOG.addFilter(_DropConnectionLines())


def _common(settings: Settings, client_id: str) -> dict[str, Any]:
    return {
        **connection(settings),
        "client.id": client_id,
        "logger": _LIBRARY_LOG,
        "reconnect.backoff.max.ms": _LONGEST_BACKOFF_MS,
    }


def producer(settings: Settings, client_id: str, **overrides: Option) -> Producer:
    """A producer that does not lose or repeat records: it is idempotent, and all replicas acknowledge."""
    return Producer(
        {
            **_common(settings, client_id),
            "socket.timeout.ms": _HANGING_BROKER_MS,
            "partitioner": _PARTITIONER,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 5,
            "message.max.bytes": LARGEST_REQUEST_BYTES,
            # Otherwise the check of a topic would create it, with wrong settings, if the brokers allow this.
            "allow.auto.create.topics": False,
            **overrides,
        }
    )


def flush(producer: Producer, seconds: float) -> int:
    """Wait for acknowledgements for at most this time. Returns the number of records without one.

    Raises KafkaException after a fatal error. librdkafka then refuses all further records of this producer.
    ``Producer.poll`` raises it too. librdkafka does not pass fatal errors to ``error_cb``.
    """
    deadline = time.monotonic() + seconds
    # ``Producer.flush`` would call ``on_delivery`` after a fatal error, and each call in it would raise SystemError.
    while len(producer) and (left := deadline - time.monotonic()) > 0:
        producer.poll(min(left, _POLL_SECONDS))
    return len(producer)


def discard(producer: Producer) -> None:
    """Stop a producer. Records without an acknowledgement are reported as not delivered."""
    producer.purge()
    for _ in range(2):  # a producer raises its fatal error once
        with suppress(KafkaException):
            flush(producer, _REPORT_SECONDS)  # this call reports the records that the purge has removed


def member_options(settings: Settings, group: str, longest_poll_ms: int) -> dict[str, Option]:
    """The options of a consumer that is a member of a group.

    Args:
        longest_poll_ms: the group removes a member that does not poll for this number of milliseconds. A longer session
            timeout replaces it, because librdkafka accepts no session timeout above this value.
    """
    session = settings.session_timeout // timedelta(milliseconds=1)
    return {
        "group.id": group,
        "session.timeout.ms": session,
        "heartbeat.interval.ms": session // 4,
        "max.poll.interval.ms": max(session, longest_poll_ms),
    }


def consumer(settings: Settings, client_id: str, **overrides: Option) -> Consumer:
    """A consumer that starts at the first record and commits no offsets. The caller stores its positions."""
    return Consumer(
        {
            **_common(settings, client_id),
            "socket.timeout.ms": _HANGING_BROKER_MS,
            # A whole response must arrive within this time. The default of 50 MiB would need a line of 40 Mbit/s.
            "fetch.max.bytes": 8 * 2**20,
            "group.id": f"{settings.topic_prefix}{READERS}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            **overrides,
        }
    )


def close(consumer: Consumer) -> None:
    """Leave the group and close the consumer, after CLOSE_SECONDS at the latest.

    librdkafka first waits for the answers to commits, which takes minutes while the broker hangs. So a daemon thread
    closes the consumer. The process does not wait for this thread when it ends.
    """

    def leave() -> None:
        try:
            consumer.close()
        except KafkaException as error:  # a callback of the consumer raised it
            log.warning("a consumer closed with an error", error=error.args[0].str())

    thread = threading.Thread(target=leave, name="close-consumer", daemon=True)
    thread.start()
    thread.join(CLOSE_SECONDS)
    if thread.is_alive():
        log.warning("a consumer did not close in time, because Kafka does not answer")


def bounded_consumer(settings: Settings, client_id: str, **overrides: Option) -> Consumer:
    """A consumer that asks for end offsets and reads partitions up to them.

    At the end of a partition the broker delays its response to a fetch by ``fetch.wait.max.ms``. All other requests of
    this consumer to the broker wait for the response. With the default of 500 ms, the end offsets of two topics with
    three partitions took 3 s.
    """
    options: dict[str, Option] = {"fetch.wait.max.ms": 20, **overrides}
    return consumer(settings, client_id, **options)


def admin(settings: Settings, client_id: str = "loyalty-admin") -> AdminClient:
    """A client for requests about topics, groups and offsets. It tolerates the loss of a broker."""
    return AdminClient(
        {
            **_common(settings, client_id),
            # Nobody polls this client, so librdkafka would keep its log lines in memory. Its calls raise the errors.
            "log_level": 0,
            # A request waits for the leader that the client knows. With the default of five minutes, it waits that long
            # for a leader that has crashed. Other clients keep the default: with more answers, it is more likely that
            # one of them names no brokers (see ``has_lost_all_brokers``).
            "topic.metadata.refresh.interval.ms": 2000,
            # With sparse connections, librdkafka 2.16 reconnects ten thousand times a second while a request waits:
            # each failed attempt sends RD_KAFKA_OP_CONNECT, which ends the pause between attempts.
            "enable.sparse.connections": False,
        }
    )


def has_lost_all_brokers(client: Client, settings: Settings) -> bool:
    """Whether a new client gets an answer from Kafka and this client gets none. It takes up to 4 s.

    The caller must replace such a client. A broker that is stopping can answer a request for metadata with its topics
    and without any broker. librdkafka then removes all brokers, and may never connect again
    (https://github.com/confluentinc/librdkafka/issues/5301).
    """
    # Ask the new client first. If Kafka returns during this call, the other client has time to connect.
    if not _gets_answer(lambda: admin(settings)) or _gets_answer(lambda: client):
        return False
    log.warning("a client has lost all brokers; a new client replaces it", kind=type(client).__name__)
    return True


def replaced_if_lost(client: Consumer, create: Callable[[], Consumer], settings: Settings) -> Consumer:
    """The consumer, or a new one if it has lost all brokers. It takes up to 4 s, and CLOSE_SECONDS more.

    It closes the lost consumer before it returns the new one, so the callbacks of the lost consumer run while the
    caller still holds it. If the close takes longer than CLOSE_SECONDS, callbacks can run later. The new consumer has
    no partitions and no subscription unless ``create`` gives it some.
    """
    if not has_lost_all_brokers(client, settings):
        return client
    new = create()
    close(client)
    return new


def _gets_answer(client: Callable[[], Client]) -> bool:
    try:
        return bool(client().list_topics(timeout=_PROBE_SECONDS).brokers)
    except KafkaException:
        return False
