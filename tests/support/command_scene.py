"""Instances that take commands, with the real account to decide them; the test plays Kafka."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import httpx

from schemas.topics import LOYALTY_BALANCES, LOYALTY_COMMANDS, LOYALTY_DECISIONS
from services.codecs.events import credit_record, decode_event
from services.codecs.records import balance_record, decision_record
from services.domain.account.processor import Account, process
from services.domain.entries import Kind
from services.domain.events import Event, Purchase
from services.domain.programme import Programmes
from services.messaging.avro import Record, encoder
from tests.support.store_tables import IDS, Group

CARD = "9265846829"
NOW = 1_700_000_000_000
PROBLEM = "urn:problem-type:loyalty:"
Steps = Callable[["Scene"], Awaitable[None]]


class Scene:
    """Some instances, and behind them what Kafka and the loyalty query are; ``decides``: whether the query runs."""

    def __init__(self, size: int = 1) -> None:
        self.group = Group.of(size)
        self.group.share(lambda place: place[1] % size)
        self.accounts: dict[str, Account | None] = {}
        self.waiting: list[Record] = []
        self.decides = True
        self.now = NOW
        self.http: httpx.AsyncClient
        for instance in self.group.instances:
            instance.command_log.on_mark = self.take_mark
            instance.command_log.on_send = self.take_command

    def take_mark(self, mark: Record, append_time: int | None = None) -> None:
        append_time = append_time or time.time_ns() // 1_000_000
        for instance in self.group.instances:
            instance.write(LOYALTY_DECISIONS, mark["CommandID"], mark, append_time)

    def take_command(self, command: Record) -> None:
        self.waiting.append(command)
        if self.decides:
            asyncio.get_running_loop().call_soon(self.decide)

    def decide(self) -> None:
        """What the loyalty query does with all that is there."""
        waiting, self.waiting = self.waiting, []
        for command in waiting:
            self.now += 1
            value = encoder(LOYALTY_COMMANDS, IDS)(command)
            self.happen(command["CustomerCardNo"], decode_event(self.now, value))

    def happen(self, card: str, event: Event) -> None:
        outcome = process(self.accounts.get(card), [event], Programmes(), card)
        self.accounts[card] = outcome.account
        for entry in outcome.entries:
            balance = None if entry.kind is Kind.ERASED else balance_record(card, entry)
            self.group.write([(LOYALTY_BALANCES, card, balance)])
        decided = [decision_record(card, each) for each in outcome.decisions]
        self.group.write((LOYALTY_DECISIONS, each["CommandID"], each) for each in decided)
        self.group.write((LOYALTY_DECISIONS, command_id, None) for command_id in outcome.forgotten)
        for credit in outcome.credits:
            self.happen(
                credit.to_card,
                decode_event(self.now, encoder(LOYALTY_COMMANDS, IDS)(credit_record(card, credit))),
            )

    def earn(self, points: str, card: str = CARD) -> None:
        """One invoice that earns so many points."""
        self.now += 1
        self.happen(card, Purchase(self.now, f"I-{self.now}", Decimal(points) * 50))

    @property
    def sent(self) -> list[Record]:
        return [each for instance in self.group.instances for each in instance.command_log.commands]

    @property
    def marks(self) -> list[Record]:
        return [each for instance in self.group.instances for each in instance.command_log.marks]

    async def until_sent(self, number: int) -> None:
        """Let the apps go on until so many commands are under way."""
        while len(self.sent) < number:  # noqa: ASYNC110  # whoever sends them is the application
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
        answer = await self.http.get(f"{self.group.instances[number].url}/v1/customers/{card}/balance")
        assert 200 == answer.status_code, answer.text
        found: dict[str, Any] = answer.json()
        return found


def play(steps: Steps, size: int = 1) -> Scene:
    scene = Scene(size)

    async def started() -> None:
        async with scene.group.running() as callers:
            scene.http = callers.http
            for instance in scene.group.instances:
                instance.waiters.bind(asyncio.get_running_loop())
            await steps(scene)

    asyncio.run(asyncio.wait_for(started(), 60))
    return scene


def kind(answer: httpx.Response, status: int) -> str:
    assert status == answer.status_code, answer.text
    assert "application/problem+json" == answer.headers["content-type"]
    return str(answer.json()["type"]).removeprefix(PROBLEM)
