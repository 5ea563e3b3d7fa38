"""A load: a writer of balances, and readers that check every balance."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial

import httpx

from tests.support.kafka import BalanceWriter
from tests.support.outages import Outages
from tests.support.threads import BackgroundThreads

POINTS_PER_SEQUENCE = Decimal("1.25")
_PAUSE_SECONDS = 0.01


def points_at(sequence: int) -> str:
    """The total that a customer must have at this sequence number."""
    return str(POINTS_PER_SEQUENCE * sequence)


@dataclass
class Findings:
    """The observations of the readers.

    Attributes:
        wrong: descriptions of balances that are wrong or older than an earlier one.
        failed: the number of reads without a balance.
        longest_failure: the longest time from the first failed read of a customer to the next success, in seconds.
        most_stale: the largest lag that a stale response reported, in records.
    """

    answers: int = 0
    stale: int = 0
    failed: int = 0
    longest_failure: float = 0.0
    most_stale: int = 0
    wrong: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)


class Writer:
    """Writes balances with rising sequence numbers for all customers in turn."""

    def __init__(self, changelog: BalanceWriter, cards: Sequence[str]) -> None:
        self._changelog = changelog
        self.written = dict.fromkeys(cards, 0)
        self.lap()

    def lap(self) -> None:
        """Write the next balance of every customer."""
        for card in self.written:
            self.written[card] += 1
            self._changelog.balance(card, points_at(self.written[card]), self.written[card])
        self._changelog.flush()


class Load(BackgroundThreads):
    """Runs a writer and readers. A reader asks all instances in turn, for the newest sequence number so far."""

    def __init__(self, writer: Writer, urls: Callable[[], Sequence[str]], readers: int = 2) -> None:
        self.findings = Findings()
        self._writer = writer
        self._urls = urls
        self._lock = threading.Lock()
        super().__init__(self._write, *(partial(self._read, number) for number in range(readers)))

    def _write(self) -> None:
        while not self.stopping.wait(0.2):
            self._writer.lap()

    def _read(self, number: int) -> None:
        seen = dict.fromkeys(self._writer.written, 0)
        outages = Outages()
        with httpx.Client(timeout=10, trust_env=False) as http:
            while not self.stopping.wait(_PAUSE_SECONDS):
                for turn, card in enumerate(seen):
                    if self.stopping.is_set():
                        break
                    urls = self._urls()
                    self._ask(http, urls[(turn + number) % len(urls)], card, seen, outages)
        with self._lock:
            self._note_failure(outages.end_all())

    def _ask(self, http: httpx.Client, url: str, card: str, seen: dict[str, int], outages: Outages) -> None:
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
                outages.begin(card, started)
                return
            self._note_failure(outages.end(card))
            seen[card] = self._check(card, seen[card], answer)

    def _check(self, card: str, seen: int, answer: httpx.Response) -> int:
        """Record what is wrong with a response. Returns its sequence number."""
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
