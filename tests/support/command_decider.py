"""The loyalty query without Spark: reads commands, decides with the real account, writes balances and decisions."""

import threading
from typing import Self

from confluent_kafka import Message

from schemas import topics
from schemas.topics import Topic
from services.codecs.events import decode_event
from services.codecs.records import balance_record, decision_record
from services.domain.account.processor import Account, process
from services.domain.entries import Kind
from services.domain.events import Event
from services.domain.programme import Programmes
from services.messaging.avro import Record, encoder
from services.messaging.clients import consumer, producer
from services.settings import Settings
from tests.support.kafka_topics import IDS

PATIENCE = 120.0


class Decider:
    """A thread for as long as the context; the accounts of all its runs are those of the given dictionary."""

    def __init__(self, settings: Settings, accounts: dict[str, Account | None]) -> None:
        self._settings = settings
        self._accounts = accounts
        self._producer = producer(settings, "test-decider")
        self._consumer = consumer(settings, f"test-decider-{id(self)}", **{"enable.partition.eof": False})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decider")

    def happen(self, card: str, event: Event) -> None:
        """Post an event, and publish what comes of it."""
        outcome = process(self._accounts.get(card), [event], Programmes(), card)
        self._accounts[card] = outcome.account
        for entry in outcome.entries:
            balance = None if entry.kind is Kind.ERASED else balance_record(card, entry)
            self._write(topics.LOYALTY_BALANCES, card, balance)
        for decision in outcome.decisions:
            self._write(topics.LOYALTY_DECISIONS, decision.command_id, decision_record(card, decision))
        for command_id in outcome.forgotten:
            self._write(topics.LOYALTY_DECISIONS, command_id, None)
        assert 0 == self._producer.flush(PATIENCE)

    def __enter__(self) -> Self:
        self._consumer.subscribe([self._settings.name_of(topics.LOYALTY_COMMANDS)])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            if (message := self._consumer.poll(0.1)) and not message.error():
                self._decide(message)

    def _decide(self, message: Message) -> None:
        key, value, (_, append_time) = message.key(), message.value(), message.timestamp()
        assert key is not None
        assert value is not None
        self.happen(key.decode(), decode_event(append_time, value))

    def _write(self, topic: Topic, key: str, record: Record | None) -> None:
        value = None if record is None else encoder(topic, IDS)(record)
        self._producer.produce(self._settings.name_of(topic), key=key.encode(), value=value)
