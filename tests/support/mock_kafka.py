"""The mock broker of librdkafka, and fatal errors of its clients. It needs no other program."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, Producer, cimpl

from services.settings import Settings

_LIBRDKAFKA = ctypes.CDLL(cimpl.__file__)
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_size_t
_LIBRDKAFKA.rd_kafka_test_fatal_error.argtypes = [_POINTER, ctypes.c_int, ctypes.c_char_p]
_LIBRDKAFKA.rd_kafka_handle_mock_cluster.argtypes = [_POINTER]
_LIBRDKAFKA.rd_kafka_handle_mock_cluster.restype = _POINTER
_LIBRDKAFKA.rd_kafka_mock_push_request_errors_array.argtypes = [_POINTER, ctypes.c_int16, _NUMBER, _POINTER]
_LIBRDKAFKA.rd_kafka_mock_broker_set_rtt.argtypes = [_POINTER, ctypes.c_int32, ctypes.c_int]
_LIBRDKAFKA.rd_kafka_mock_partition_set_leader.argtypes = [_POINTER, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32]
_LIBRDKAFKA.rd_kafka_mock_start_request_tracking.argtypes = [_POINTER]
_LIBRDKAFKA.rd_kafka_mock_get_requests.argtypes = [_POINTER, _POINTER]
_LIBRDKAFKA.rd_kafka_mock_get_requests.restype = ctypes.POINTER(_POINTER)
_LIBRDKAFKA.rd_kafka_mock_request_api_key.argtypes = [_POINTER]
_LIBRDKAFKA.rd_kafka_mock_request_api_key.restype = ctypes.c_int16
_LIBRDKAFKA.rd_kafka_mock_request_destroy_array.argtypes = [_POINTER, _NUMBER]

_AN_HOUR_MS = 3_600_000


@contextmanager
def mock_broker() -> Iterator[tuple[Settings, Producer]]:
    """A mock broker in this process, which creates topics automatically. Yields its address and a producer."""
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    yield Settings(kafka_bootstrap_servers=f"{broker.host}:{broker.port}"), producer
    producer.close()


def refuse_next(broker: Producer, request: int, error: int, times: int = 1) -> None:
    """Make the broker of this producer answer the next requests with this API key with an error."""
    cluster = _LIBRDKAFKA.rd_kafka_handle_mock_cluster(_handle(broker))
    _LIBRDKAFKA.rd_kafka_mock_push_request_errors_array(
        cluster, request, times, (ctypes.c_int * times)(*[error] * times)
    )


def lose_leader(broker: Producer, topic: str) -> None:
    """Take the leader from the first partition of a topic."""
    cluster = _LIBRDKAFKA.rd_kafka_handle_mock_cluster(_handle(broker))
    _LIBRDKAFKA.rd_kafka_mock_partition_set_leader(cluster, topic.encode(), 0, -1)


@contextmanager
def hanging(broker: Producer) -> Iterator[None]:
    """During the block, the broker of this producer keeps its connections but answers no new request."""
    cluster = _LIBRDKAFKA.rd_kafka_handle_mock_cluster(_handle(broker))
    number = next(iter(broker.list_topics(timeout=10).brokers))
    _LIBRDKAFKA.rd_kafka_mock_broker_set_rtt(cluster, number, _AN_HOUR_MS)
    yield
    _LIBRDKAFKA.rd_kafka_mock_broker_set_rtt(cluster, number, 0)


@contextmanager
def requests_to(broker: Producer) -> Iterator[list[int]]:
    """Yields a list. After the block it has the API keys of all requests of the block."""
    cluster = _LIBRDKAFKA.rd_kafka_handle_mock_cluster(_handle(broker))
    _LIBRDKAFKA.rd_kafka_mock_start_request_tracking(cluster)
    kinds: list[int] = []
    yield kinds
    number = ctypes.c_size_t()
    requests = _LIBRDKAFKA.rd_kafka_mock_get_requests(cluster, ctypes.byref(number))
    kinds += [_LIBRDKAFKA.rd_kafka_mock_request_api_key(requests[index]) for index in range(number.value)]
    _LIBRDKAFKA.rd_kafka_mock_request_destroy_array(requests, number)


def fail(producer: Producer) -> None:
    """Give an idempotent producer a fatal error, as after an answer with an unexpected sequence number."""
    _LIBRDKAFKA.rd_kafka_test_fatal_error(_handle(producer), KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"by a test")


def _handle(client: Producer) -> int | None:
    # The handle of librdkafka is the first field of a client, after the header that each Python object has.
    return ctypes.c_void_p.from_address(id(client) + object.__basicsize__).value
