"""The broker that librdkafka contains for tests, and its fatal errors. It needs no other program."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, Producer, cimpl

from services.settings import Settings

_LIBRDKAFKA = ctypes.CDLL(cimpl.__file__)
_LIBRDKAFKA.rd_kafka_test_fatal_error.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]


@contextmanager
def mock_broker() -> Iterator[tuple[Settings, Producer]]:
    """A broker in this process, which creates topics by itself. Yields its address, and a producer for it."""
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    yield Settings(kafka_bootstrap_servers=f"{broker.host}:{broker.port}"), producer
    producer.close()


def fail(producer: Producer) -> None:
    """Give an idempotent producer a fatal error, as after an answer with an unexpected sequence number."""
    # The first field of a client of confluent_kafka, behind the header of each Python object, is its handle.
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__).value
    _LIBRDKAFKA.rd_kafka_test_fatal_error(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"by a test")
