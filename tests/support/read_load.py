"""Callers that read balances all the time and check every answer."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Self

import httpx

from tests.support.kafka import BalanceWriter

POINTS_PER_SEQUENCE = Decimal("1.25")
_PAUSE_SECONDS = 0.01


def points_at(sequence: int) -> str:
    """What a customer of these tests has after so many invoices: any other total is that of no prefix of the input."""
    return str(POINTS_PER_SEQUENCE * sequence)


@dataclass
class Findings:
    """What callers have met.

    Attributes:
        wrong: answers that are not true.
        failed: how often there was no answer with a balance.
        longest_failure: seconds from a customer's first failed read to its next good one, the longest.
        most_stale: records that a stale answer lagged, by its own word, at most.
    """

    answers: int = 0
    stale: int = 0
    failed: int = 0
    longest_failure: float = 0.0
    most_stale: int = 0
    wrong: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)


class Writer:
    """Raises the sequence of one customer after the other."""

    def __init__(self, changelog: BalanceWriter, cards: Sequence[str]) -> None:
        self._changelog = changelog
        self.written = dict.fromkeys(cards, 0)
        self.lap()

    def lap(self) -> None:
        """One invoice more for every customer."""
        for card in self.written:
            self.written[card] += 1
            self._changelog.balance(card, points_at(self.written[card]), self.written[card])
        self._changelog.flush()


class Load:
    """A writer and readers; each reader asks with minSequence for what it has seen, of whichever instance is next."""

    def __init__(self, writer: Writer, urls: Callable[[], Sequence[str]], readers: int = 2) -> None:
        self.findings = Findings()
        self._writer = writer
        self._urls = urls
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(number,)) for number in range(readers)]
        self._threads.append(threading.Thread(target=self._write))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        while not self._stopping.wait(0.2):
            self._writer.lap()

    def _read(self, number: int) -> None:
        seen = dict.fromkeys(self._writer.written, 0)
        failing_since: dict[str, float] = {}
        with httpx.Client(timeout=10, trust_env=False) as http:
            while not self._stopping.wait(_PAUSE_SECONDS):
                for turn, card in enumerate(seen):
                    if self._stopping.is_set():
                        break
                    urls = self._urls()
                    self._ask(http, urls[(turn + number) % len(urls)], card, seen, failing_since)
        with self._lock:
            for since in failing_since.values():
                self._note_failure(time.monotonic() - since)

    def _ask(
        self, http: httpx.Client, url: str, card: str, seen: dict[str, int], failing_since: dict[str, float]
    ) -> None:
        started = time.monotonic()
        answer = None
        try:
            answer = http.get(f"{url}/v1/customers/{card}/balance?minSequence={max(1, seen[card])}&timeout=1")
            reason = f"{answer.status_code} {answer.text}"
        except httpx.TransportError as error:
            reason = f"{url}: {type(error).__name__}"
        with self._lock:
            if answer is None or answer.status_code != httpx.codes.OK:
                self.findings.failed += 1
                self.findings.reasons.add(reason)
                failing_since.setdefault(card, started)
                return
            if (since := failing_since.pop(card, None)) is not None:
                self._note_failure(time.monotonic() - since)
            seen[card] = self._check(card, seen[card], answer)

    def _check(self, card: str, seen: int, answer: httpx.Response) -> int:
        """Note what is wrong with an answer; returns its sequence."""
        body, findings = answer.json(), self.findings
        sequence = int(body["Sequence"])
        findings.answers += 1
        if sequence < seen or body["TotalLoyaltyPoints"] != points_at(sequence) or body["CustomerCardNo"] != card:
            findings.wrong.append(f"{card}: {body} after {seen}")
        if answer.headers["loyalty-stale"] == "true":
            findings.stale += 1
            findings.most_stale = max(findings.most_stale, int(answer.headers["loyalty-lag"]))
        return sequence

    def _note_failure(self, seconds: float) -> None:
        self.findings.longest_failure = max(self.findings.longest_failure, seconds)
