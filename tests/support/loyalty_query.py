"""Substitutes of the loyalty query that process commands with the real account: over Kafka, or within one process."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, Self

import httpx
from confluent_kafka import Message

from schemas.topics import LOYALTY_BALANCES, LOYALTY_COMMANDS, LOYALTY_DECISIONS, Topic
from services.clock import now
from services.codecs.events import command_record, credit_record, decode_event
from services.codecs.records import balance_record, decision_record, erased_decision_record
from services.domain.account.model import AccountState, Outcome
from services.domain.account.processor import process
from services.domain.entries import Kind
from services.domain.events import Event, Purchase
from services.domain.programme import Programmes
from services.messaging.avro import Record, encoder
from services.messaging.clients import consumer, producer
from services.settings import Settings
from tests.support.builders import CARD, IDS
from tests.support.clusters import Group
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS

NOW = 1_700_000_000_000
Steps = Callable[["Scene"], Awaitable[None]]
Change = tuple[Topic, str, Record | None]


class Accounts:
    """The accounts of all cards, and the records that their changes write."""

    def __init__(self) -> None:
        self.by_card: dict[str, AccountState | None] = {}

    def process(self, card: str, event: Event) -> tuple[Outcome, list[Change]]:
        """Process one event of a card. Returns the outcome, and the balances and decisions for the changelogs."""
        outcome = process(self.by_card.get(card), [event], Programmes(), card)
        self.by_card[card] = outcome.state
        changes: list[Change] = [
            (LOYALTY_BALANCES, card, None if entry.kind is Kind.ERASED else balance_record(card, entry))
            for entry in outcome.entries
        ]
        decided = [decision_record(card, each) for each in outcome.decisions]
        changes += [(LOYALTY_DECISIONS, each["CommandID"], each) for each in decided]
        changes += [(LOYALTY_DECISIONS, each.command_id, erased_decision_record(each)) for each in outcome.forgotten]
        return outcome, changes


class KafkaLoyaltyQuery:
    """A thread that reads commands from Kafka, and writes balances and decisions, while the context is open."""

    def __init__(self, settings: Settings, accounts: Accounts) -> None:
        self._settings = settings
        self._accounts = accounts
        self._producer = producer(settings, "test-decider")
        self._consumer = consumer(settings, f"test-decider-{id(self)}", **{"enable.partition.eof": False})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decider")

    def process(self, card: str, event: Event) -> None:
        """Process an event, and publish its changes."""
        for topic, key, record in self._accounts.process(card, event)[1]:
            value = None if record is None else encoder(topic, IDS)(record)
            self._producer.produce(self._settings.name_of(topic), key=key.encode(), value=value)
        assert 0 == self._producer.flush(KAFKA_TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        self._consumer.subscribe([self._settings.name_of(LOYALTY_COMMANDS)])
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
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        self.process(key.decode(), decode_event(append_time, value))


class Scene:
    """Instances that accept commands, and a loyalty query that decides them.

    Attributes:
        waiting: commands that are not decided yet.
        decides: whether the loyalty query runs.
        now: the append time of the last event, in milliseconds since the epoch.
    """

    def __init__(self, size: int = 1) -> None:
        self.group = Group.of(size)
        self.group.share(lambda place: place[1] % size)
        self.accounts = Accounts()
        self.waiting: list[Record] = []
        self.decides = True
        self.now = NOW
        self.http: httpx.AsyncClient
        for instance in self.group.instances:
            instance.command_log.on_mark = self.take_mark
            instance.command_log.on_send = self.take_command

    def take_mark(self, mark: Record) -> None:
        for instance in self.group.instances:
            instance.write(LOYALTY_DECISIONS, mark["CommandID"], mark, now())

    def take_command(self, command: Record) -> None:
        self.waiting.append(command)
        if self.decides:
            asyncio.get_running_loop().call_soon(self.decide)

    def decide(self) -> None:
        """Process all waiting commands, as the loyalty query does in one micro-batch."""
        waiting, self.waiting = self.waiting, []
        for command in waiting:
            self.now += 1
            self._process_command(command)

    def happen(self, card: str, event: Event) -> None:
        outcome, changes = self.accounts.process(card, event)
        self.group.write(changes)
        for credit in outcome.credits:
            self._process_command(credit_record(card, credit))
        for to_card, sent in outcome.commands:
            self._process_command(command_record(to_card, sent))

    def _process_command(self, command: Record) -> None:
        value = encoder(LOYALTY_COMMANDS, IDS)(command)
        self.happen(command["CustomerCardNo"], decode_event(self.now, value))

    def earn(self, points: str, card: str = CARD) -> None:
        """Process one invoice that earns these points."""
        self.now += 1
        self.happen(card, Purchase(self.now, f"I-{self.now}", Decimal(points) * 50))

    @property
    def sent(self) -> list[Record]:
        return [each for instance in self.group.instances for each in instance.command_log.commands]

    @property
    def marks(self) -> list[Record]:
        return [each for instance in self.group.instances for each in instance.command_log.marks]

    async def until_sent(self, number: int) -> None:
        """Let the applications run until they have sent this number of commands."""
        while len(self.sent) < number:  # noqa: ASYNC110 - the applications under test send them
            await asyncio.sleep(0)

    async def ask(
        self, method: str, path: str, body: Any = None, key: str | None = "k-1", number: int = 0
    ) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        url = self.group.instances[number].url + path
        return await self.http.request(method, url, json=body, headers=headers)

    async def redeem(self, points: str = "10.00", key: str = "k-1", query: str = "", number: int = 0) -> httpx.Response:
        path = f"/v1/customers/{CARD}/redemptions{query}"
        return await self.ask("POST", path, {"points": points}, key, number)

    async def balance(self, card: str = CARD, number: int = 0) -> dict[str, Any]:
        response = await self.http.get(f"{self.group.instances[number].url}/v1/customers/{card}/balance")
        assert 200 == response.status_code, response.text
        balance: dict[str, Any] = response.json()
        return balance


def play(steps: Steps, size: int = 1) -> Scene:
    """Run the steps of a test against a scene with this number of instances."""
    scene = Scene(size)

    async def run() -> None:
        async with scene.group.running() as client:
            scene.http = client.http
            for instance in scene.group.instances:
                instance.waiters.bind(asyncio.get_running_loop())
            await steps(scene)

    asyncio.run(asyncio.wait_for(run(), 60))
    return scene
