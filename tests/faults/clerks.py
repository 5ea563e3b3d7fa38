"""The load of commands: clerks redeem, adjust and transfer points over HTTP, and retry until they get a response.

Clerks also read balances from all instances, directly after their own commands and while others change the account.
"""

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

import httpx

from infra.local.stack import LocalStack
from services.commands.identity import command_id
from tests.faults.accounts import Answer
from tests.faults.histories import Action, Histories, command_response
from tests.faults.linearizability import Operation
from tests.faults.load import read_balance
from tests.support.threads import BackgroundThreads

_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 16.0
"""Timeout of one request, longer than an instance waits for a decision or a forward (15 s)."""

_NOT_YET = {"command-in-flight", "redemption-pending"}


@dataclass
class Answers:
    """The responses to the clerks.

    Attributes:
        final: the final response to each command.
        wrong: descriptions of impossible responses.
        tries: number of requests.
        slowest_seconds: the longest time from the first request of a command to its response.
        slowest_tries: the responses to the requests of this command, each with the seconds since the first request.
    """

    final: list[Answer] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    tries: int = 0
    slowest_seconds: float = 0.0
    slowest_tries: str = ""


class Clerks(BackgroundThreads):
    """Clerks that serve the same customers. Each of them sends one command at a time.

    All requests for a command have the same Idempotency-Key, for every instance.

    Attributes:
        histories: gets the commands, each with the times of its first request and its response, and the reads.
    """

    def __init__(
        self, stack: LocalStack, http: httpx.Client, cards: list[str], histories: Histories, seed: int, count: int
    ) -> None:
        self.answers, self.histories, self._http = Answers(), histories, http
        self._urls, self._cards = [api.url for api in stack.apis], cards
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        super().__init__(*(partial(self._work, seed, number) for number in range(count)))

    def __exit__(self, *_: object) -> None:
        """Give up commands that have no response."""
        self._given_up.set()
        super().__exit__()

    def stop(self) -> None:
        """Begin no new commands. Clerks still retry the current ones until they get a response."""
        self.stopping.set()

    def _work(self, seed: int, number: int) -> None:
        clerk = _Clerk(self, f"{seed}-{number}")
        while not self.stopping.wait(_PAUSE_SECONDS):
            clerk.run_random_command()

    def ask(self, path: str, body: Mapping[str, Any] | None, key: str) -> Answer:
        """Send a command again and again, until there is a final response."""
        started, tries = time.monotonic(), list[str]()
        while (answer := self._try(path, body, key, tries)) is None:
            tries[-1] += f" after {time.monotonic() - started:.1f} s"
            if self._given_up.wait(_PAUSE_SECONDS):
                raise SystemExit  # ends only this thread
        seconds = time.monotonic() - started
        with self._lock:
            if seconds > self.answers.slowest_seconds:
                self.answers.slowest_seconds, self.answers.slowest_tries = seconds, ", ".join(tries)
        return answer

    def _try(self, path: str, body: Mapping[str, Any] | None, key: str, tries: list[str]) -> Answer | None:
        """Send one request to the next instance, and add its response to ``tries``. None if it must be sent again."""
        try:
            url, headers = self._next_url() + path, {"Idempotency-Key": key}
            answer = self._http.post(url, json=body, headers=headers, timeout=_TIMEOUT_SECONDS)
        except httpx.HTTPError as error:
            tries.append(type(error).__name__)
            return None
        found = answer.json() if answer.headers.get("content-type", "").endswith("json") else {}
        problem = str(found.get("type", "")).rpartition(":")[2]
        tries.append(f"{answer.status_code} {problem}".rstrip())
        if answer.status_code == httpx.codes.ACCEPTED or answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            return None
        return None if problem in _NOT_YET else Answer(answer.status_code, found)

    def read(self, card: str, least: int | None) -> None:
        """Read a balance once from the next instance. ``least`` is the sequence number to wait for."""
        parameters = {} if least is None else {"minSequence": least, "timeout": 5}
        answer = read_balance(self._http, _TIMEOUT_SECONDS, self._next_url(), card, self.histories, **parameters)
        if answer is None or least is None:
            return
        if answer.status_code != httpx.codes.OK or answer.json()["Sequence"] < least:
            with self._lock:
                self.answers.wrong.append(f"a read of {card} at sequence {least} or later got {answer.text}")

    def _next_url(self) -> str:
        with self._lock:
            self.answers.tries += 1
            return self._urls[self.answers.tries % len(self._urls)]

    def note_final(self, answer: Answer) -> None:
        with self._lock:
            if answer.status in (httpx.codes.OK, httpx.codes.CREATED, httpx.codes.CONFLICT):
                self.answers.final.append(answer)
            else:
                self.answers.wrong.append(f"a command was answered {answer.status} {answer.body.get('type')}")

    def compare(self, first: Answer, again: Answer) -> None:
        if first != again:
            with self._lock:
                self.answers.wrong.append(f"the first response was {first}, and the repeated request got {again}")


class _Clerk:
    def __init__(self, clerks: Clerks, name: str) -> None:
        self._clerks, self._name = clerks, name
        self._rng = random.Random(f"clerk {name}")
        self._given = 0

    def run_random_command(self) -> None:
        card = self._rng.choice(self._clerks._cards)
        match self._rng.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                self._redeem(card)
            case 5 | 6 | 7:
                points = f"{self._rng.choice((-2_000, 500, 1_000, 3_000)) / 100:.2f}"
                body = {"points": points, "reason": "a correction", "actor": self._name}
                self._give(card, Action("adjust", points=Decimal(points)), f"/v1/customers/{card}/adjustments", body)
            case _:
                to, points = self._rng.choice(self._clerks._cards), self._points()
                action = Action("transfer", points=Decimal(points), possible=to != card)
                self._give(card, action, "/v1/transfers", {"from": card, "to": to, "points": points})

    def _redeem(self, card: str) -> None:
        """Reserve points. Then do nothing, capture, void, or try both."""
        points = self._points()
        action = Action("reserve", points=Decimal(points))
        reserved = self._give(card, action, f"/v1/customers/{card}/redemptions", {"points": points})
        if reserved.status == httpx.codes.CREATED:
            for end in self._rng.choice(([], ["capture"], ["capture"], ["void"], ["capture", "void"])):
                if self._clerks.stopping.is_set():
                    return
                redemption_id = str(reserved.body["RedemptionID"])
                action = Action(end, redemption_id=redemption_id)
                self._give(card, action, f"/v1/redemptions/{redemption_id}/{end}", None)

    def _points(self) -> str:
        return f"{self._rng.choice((1, 250, 1_000, 4_000, 20_000)) / 100:.2f}"

    def _give(self, card: str, action: Action, path: str, body: Mapping[str, Any] | None) -> Answer:
        self._given += 1
        key = f"{self._name}-{self._given}"
        action = action._replace(id=command_id("POST", path, key))
        start, histories = time.monotonic(), self._clerks.histories
        try:
            answer = self._clerks.ask(path, body, key)
        except SystemExit:
            histories.add(card, Operation(action, start))
            raise
        if str(answer.body.get("type")).endswith(":unknown-customer"):
            return answer  # the card has no account yet, so the command had no effect
        end = time.monotonic()
        self._clerks.note_final(answer)
        if "AccountSequence" in answer.body:
            received = command_response(answer.body)
            histories.add_command(card, action._replace(received=received), start, end)
            for least in self._rng.choice(([], [None], [None, received.sequence])):
                self._clerks.read(card, least)
        if self._rng.random() < 0.2:
            # Repeat the request, like a client that lost the response.
            self._clerks.compare(answer, self._clerks.ask(path, body, key))
        return answer
