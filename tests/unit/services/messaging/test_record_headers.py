"""Records with a header whose name is not UTF-8. Kafka accepts them, for example from a program in C."""

import ctypes
from contextlib import closing
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from schemas.topics import DEAD_LETTERS, LOYALTY, LOYALTY_BALANCES, POS_INVOICES, Topic
from services.ledger.consumer import LedgerConsumer
from services.ledger.metrics import Metrics
from services.messaging.avro import decoder
from services.messaging.dead_letters import dead_letter_of
from services.messaging.log_reader import Batch
from services.messaging.record_headers import headers_of
from services.settings import Settings
from services.sql.topics import TopicSource
from tests.support.builders import IDS
from tests.support.mock_kafka import _LIBRDKAFKA, _handle
from tests.support.traces import tracing_in_memory
from tests.unit.services.state_stores.materialisers import Scene

TRACEPARENT = "00-" + "1" * 32 + "-" + "1" * 16 + "-01"

# The types of the arguments of rd_kafka_producev.
_END, _TOPIC, _VALUE, _FLAGS, _HEADER = 0, 1, 4, 7, 9
_COPY = 2


def produce(producer: Producer, topic: Topic) -> None:
    """Produce a record with a header that confluent_kafka cannot read, and then a record with a trace."""
    size = ctypes.c_size_t(1)
    header = (_HEADER, b"\xff", b"1", size)
    arguments = (_TOPIC, topic.name.encode(), _VALUE, b"1", size, _FLAGS, _COPY, *header, _END)
    assert 0 == _LIBRDKAFKA.rd_kafka_producev(ctypes.c_void_p(_handle(producer)), *arguments)
    assert 0 == producer.flush(10)
    producer.produce(topic.name, b"2", headers={"traceparent": TRACEPARENT})
    assert 0 == producer.flush(10)


def read(settings: Settings, topic: Topic) -> list[Message]:
    """Both records. The mock broker puts them into any of its partitions."""
    options = {"bootstrap.servers": settings.kafka_bootstrap_servers, "group.id": "test"}
    with closing(Consumer(options)) as consumer:
        partitions = consumer.list_topics(topic.name, timeout=10).topics[topic.name].partitions
        consumer.assign([TopicPartition(topic.name, number, 0) for number in partitions])
        found: list[Message] = []
        while len(found) < 2:
            found += consumer.consume(1, 10)
    assert all(message.error() is None for message in found)
    return sorted(found, key=lambda message: message.value() or b"")


def test_such_a_record_has_no_headers(mocked_broker: tuple[Settings, Producer]) -> None:
    """Not in a second call either, for which confluent_kafka has a list that crashes the process, and not after many
    calls, when Python calls the method in a faster way. Other records, and the rest of the record, are as they were.
    """
    settings, producer = mocked_broker
    produce(producer, DEAD_LETTERS)
    bad, good = read(settings, DEAD_LETTERS)
    for _ in range(100):
        headers_of(good)

    assert ([], []) == (headers_of(bad), headers_of(bad))
    assert [("traceparent", TRACEPARENT.encode())] == headers_of(good)
    letter = dead_letter_of(bad)
    assert (b"1", None, None, "", ()) == (letter.value, letter.topic, letter.origin, letter.reason, letter.headers)


def test_sql_reads_the_other_records(mocked_broker: tuple[Settings, Producer]) -> None:
    """Neither record is an invoice. Both are counted as skipped."""
    settings, producer = mocked_broker
    produce(producer, POS_INVOICES)
    source = TopicSource(POS_INVOICES, settings, Event())
    list(source.read())
    assert 2 == source.skipped.total()


@pytest.mark.parametrize("reader", ["ledger", "materialiser"])
def test_traces_of_a_batch_leave_it_out(mocked_broker: tuple[Settings, Producer], reader: str) -> None:
    """The batch is processed, and the other record continues its trace."""
    settings, producer = mocked_broker
    topic = LOYALTY if reader == "ledger" else LOYALTY_BALANCES
    produce(producer, topic)
    messages = read(settings, topic)
    batch = Batch({(topic.name, 0): messages}, {})
    log: Any = SimpleNamespace(read=lambda *_: batch, end_offset=lambda *_: 2)

    with tracing_in_memory() as spans:
        if reader == "ledger":
            appended = MagicMock()
            ledger = LedgerConsumer(settings, MagicMock(), decoder(topic, IDS), Metrics())
            ledger._reader, ledger._append = log, appended  # type: ignore[method-assign]
            ledger._append_or_check()
            appended.assert_called_once_with(messages)
        else:
            materialiser = Scene().materialiser
            materialiser._reader, materialiser._restored = log, True
            materialiser._apply_batch()
    assert ["1" * 32] == [f"{span.context.trace_id:032x}" for span in spans.get_finished_spans()]
