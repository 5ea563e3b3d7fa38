"""The load that moves points: clerks who redeem, correct and transfer over HTTP, and ask until they are answered."""

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from infra.local.stack import LocalStack
from tests.faults.accounts import Answer

_PAUSE_SECONDS = 0.5
_PATIENCE_SECONDS = 30.0
"""For one try: longer than an instance waits for the decision, and for the one it hands the command to."""

_NOT_YET = {"command-in-flight", "redemption-pending"}


@dataclass
class Answers:
    """What clerks were told.

    Attributes:
        final: an answer a command, the last one.
        wrong: answers that cannot be right, in words.
        tries: requests sent for them.
        slowest_seconds: from the first try of a command to its answer, at most.
    """

    final: list[Answer] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    tries: int = 0
    slowest_seconds: float = 0.0


class Clerks:
    """Some clerks at work on the same customers, each with one command at a time, until told to stop.

    A command keeps its Idempotency-Key however often it has to be sent, and by whichever instance it is answered.
    """

    def __init__(self, stack: LocalStack, cards: list[str], seed: int, count: int) -> None:
        self.answers = Answers()
        self._urls, self._cards = [api.url for api in stack.apis], cards
        self._stopping, self._given_up = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work, args=(seed, each), daemon=True) for each in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give up what is not answered yet."""
        self._stopping.set()
        self._given_up.set()
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Begin nothing more; what has been begun is asked for until it is answered."""
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def are_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, seed: int, number: int) -> None:
        with httpx.Client(timeout=_PATIENCE_SECONDS, trust_env=False) as http:
            clerk = _Clerk(self, http, f"{seed}-{number}")
            while not self._stopping.wait(_PAUSE_SECONDS):
                clerk.do_something()

    def ask(self, http: httpx.Client, path: str, body: Mapping[str, Any] | None, key: str) -> Answer:
        """Give a command, as often as it takes."""
        started = time.monotonic()
        while (answer := self._try(http, path, body, key)) is None:
            if self._given_up.wait(_PAUSE_SECONDS):
                raise SystemExit  # of this thread alone
        with self._lock:
            self.answers.slowest_seconds = max(self.answers.slowest_seconds, time.monotonic() - started)
        return answer

    def _try(self, http: httpx.Client, path: str, body: Mapping[str, Any] | None, key: str) -> Answer | None:
        """One request, to whichever instance is next; None if it has to be repeated."""
        with self._lock:
            self.answers.tries += 1
            url = self._urls[self.answers.tries % len(self._urls)]
        try:
            answer = http.post(url + path, json=body, headers={"Idempotency-Key": key})
        except httpx.HTTPError:
            return None
        if answer.status_code == httpx.codes.ACCEPTED or answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            return None
        found = answer.json()
        return None if str(found.get("type")).rpartition(":")[2] in _NOT_YET else Answer(answer.status_code, found)

    def take(self, answer: Answer) -> None:
        with self._lock:
            if answer.status in (httpx.codes.OK, httpx.codes.CREATED, httpx.codes.CONFLICT):
                self.answers.final.append(answer)
            else:
                self.answers.wrong.append(f"a command was answered {answer.status} {answer.body.get('type')}")

    def compare(self, first: Answer, again: Answer) -> None:
        if first != again:
            with self._lock:
                self.answers.wrong.append(f"answered {first} at first, and {again} when asked again")


class _Clerk:
    def __init__(self, desk: Clerks, http: httpx.Client, name: str) -> None:
        self._desk, self._http, self._name = desk, http, name
        self._dice = random.Random(f"clerk {name}")
        self._given = 0

    def do_something(self) -> None:
        card = self._dice.choice(self._desk._cards)
        match self._dice.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                self._redeem(card)
            case 5 | 6 | 7:
                points = f"{self._dice.choice((-2_000, 500, 1_000, 3_000)) / 100:.2f}"
                body = {"points": points, "reason": "a correction", "actor": self._name}
                self._give(f"/v1/customers/{card}/adjustments", body)
            case _:
                body = {"from": card, "to": self._dice.choice(self._desk._cards), "points": self._points()}
                self._give("/v1/transfers", body)

    def _redeem(self, card: str) -> None:
        """Set points aside, and then nothing, or one thing, or two that cannot both be."""
        reserved = self._give(f"/v1/customers/{card}/redemptions", {"points": self._points()})
        if reserved.status == httpx.codes.CREATED:
            for end in self._dice.choice(([], ["capture"], ["capture"], ["void"], ["capture", "void"])):
                if self._desk.is_stopping:
                    return
                self._give(f"/v1/redemptions/{reserved.body['RedemptionID']}/{end}", None)

    def _points(self) -> str:
        return f"{self._dice.choice((1, 250, 1_000, 4_000, 20_000)) / 100:.2f}"

    def _give(self, path: str, body: Mapping[str, Any] | None) -> Answer:
        self._given += 1
        key = f"{self._name}-{self._given}"
        answer = self._desk.ask(self._http, path, body, key)
        self._desk.take(answer)
        if self._dice.random() < 0.2:
            # Whoever did not hear the answer asks for it once more.
            self._desk.compare(answer, self._desk.ask(self._http, path, body, key))
        return answer
