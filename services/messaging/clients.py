"""Kafka clients, each configured in one place."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from services.settings import Settings

# librdkafka's default places keys by CRC32, Java and Spark by murmur2: a record must go where its readers look for it.
_PARTITIONER = "murmur2_random"


Option = str | int | float | bool | Callable[..., Any]
"""A setting of librdkafka, or what it is to call back."""


def _common(settings: Settings, client_id: str) -> dict[str, Any]:
    return {"bootstrap.servers": settings.kafka_bootstrap_servers, "client.id": client_id}


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
    # Its news about itself (level 6 and above) would stand between the lines of a command's own output.
    return AdminClient({**_common(settings, client_id), "log_level": 5})
