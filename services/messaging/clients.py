"""Kafka clients, each configured in one place."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from services.settings import Settings

# librdkafka's default places keys by CRC32, Java and Spark by murmur2: a record must go where its readers look for it.
_PARTITIONER = "murmur2_random"


Option = str | int | float | bool | Callable[..., Any]
"""A setting of librdkafka, or what it is to call back."""


def connection(settings: Settings) -> dict[str, Any]:
    """Where the brokers are and how they are spoken to: the options of librdkafka that every client shares.

    The certificate must name the host that was asked for; librdkafka checks that by default.
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
    """Why a broker that answers does not let a client in: no valid password, or a certificate nobody trusts.

    librdkafka tells this only to ``error_cb``; calls just time out.
    """

    def __init__(self) -> None:
        self._reason: str | None = None

    def on_error(self, error: KafkaError) -> None:
        """Takes what librdkafka reports; to be given as ``error_cb``, which is called while the client is polled."""
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):  # noqa: SLF001  # their only names
            _, _, self._reason = error.str().partition(" (after ")[0].partition(": ")

    def explain(self, settings: Settings) -> str:
        """One line for whoever started the client, once a call has failed."""
        if self._reason is None:
            return f"no Kafka broker answers at {settings.kafka_bootstrap_servers}"
        return f"the Kafka broker at {settings.kafka_bootstrap_servers} cannot be used: {self._reason}"


def _common(settings: Settings, client_id: str) -> dict[str, Any]:
    return {**connection(settings), "client.id": client_id}


def producer(settings: Settings, client_id: str, **overrides: Option) -> Producer:
    """A producer that loses and repeats nothing on its way to the broker (idempotent, all replicas acknowledge)."""
    return Producer(
        {
            **_common(settings, client_id),
            "partitioner": _PARTITIONER,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 5,
            **overrides,
        }
    )


def consumer(settings: Settings, client_id: str, **overrides: Option) -> Consumer:
    """A consumer that starts at the beginning and commits nothing: offsets are kept with what records became."""
    return Consumer(
        {
            **_common(settings, client_id),
            "group.id": client_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            **overrides,
        }
    )


def admin(settings: Settings, client_id: str = "loyalty-admin") -> AdminClient:
    """A client for questions about topics, groups and offsets; it copes with a broker that is gone."""
    return AdminClient(
        {
            **_common(settings, client_id),
            # Its news about itself (level 6 and above) would stand between the lines of a command's own output.
            "log_level": 5,
            # A question waits for the broker that is said to lead, by default for five minutes after its death.
            "topic.metadata.refresh.interval.ms": 2000,
            # While a question waits so, librdkafka 2.16 connects again without its pause (RD_KAFKA_OP_CONNECT ends the
            # pause, and is sent whenever a try has failed): ten thousand times a second, unless all are kept connected.
            "enable.sparse.connections": False,
        }
    )
