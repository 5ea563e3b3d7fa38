"""The load: tills publish invoices, and callers read balances."""

import time
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

import httpx

from infra.local.stack import LocalStack
from schemas import topics
from services.messaging.resending import ResendingProducer
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.simulation import Message, Options, Simulation
from tests.faults.histories import Histories
from tests.support.outages import Outages
from tests.support.threads import BackgroundThreads

_ENDLESS = 1_000_000
_PAUSE_SECONDS = 0.1
_WATCH_SECONDS = 1.0
_CALLER_SECONDS = 2.0
"""After this time a caller asks the next instance, as a load balancer does, because an instance can be paused."""

_TIMEOUT_SECONDS = 30.0
"""Longer than the pause of an instance."""


class Tills(BackgroundThreads):
    """Publish a simulated day with duplicates and broken messages at a steady rate.

    The producer sends a record again until the broker accepts it, as a till does.
    """

    def __init__(self, stack: LocalStack, seed: int, rate: float) -> None:
        self._settings, self._rate = stack.settings, rate
        options = Options(count=_ENDLESS, seed=seed, customers=200, repeats=0.03, broken=0.03)
        self._messages = Simulation(options, schema_ids(stack.settings)).messages()
        super().__init__(self._publish)
        self._failures: list[str] = []
        self._given_up = False

    def __exit__(self, *error: object) -> None:
        """After an error, do not wait for acknowledgements: the fault can have stopped the broker forever."""
        self._given_up = any(error)
        super().__exit__()

    def encode(self, message: Message) -> bytes:
        """The value of the record."""
        return message.value

    def _publish(self) -> None:
        client = ResendingProducer(self._settings, "faults-tills", log_level=0)
        topic = self._settings.name_of(topics.POS_INVOICES)
        started = time.monotonic()
        for number, message in enumerate(self._messages):
            while (left := started + number / self._rate - time.monotonic()) > 0 and not self.stopping.is_set():
                client.poll(min(left, 0.2))
            if self.stopping.is_set():
                break
            while not self._is_taken(client, topic, message) and not self._given_up:
                client.poll(0.2)
            client.poll(0)
        while len(client) and not self._given_up:
            client.poll(1.0)
        if self._failures:
            raise RuntimeError(f"the tills could not publish: {self._failures[0]}")

    def _is_taken(self, client: ResendingProducer, topic: str, message: Message) -> bool:
        try:
            client.produce(topic, self.encode(message), message.key, [], self._delivered)
        except BufferError:  # its records wait for a new producer
            return False
        return True

    def _delivered(self, error: Any) -> None:
        if error is not None:
            self._failures.append(error.str())


@dataclass
class Readings:
    """The responses to the callers.

    Attributes:
        totals: every (card, sequence number, total) that was served.
        backwards: descriptions of responses that were not marked stale but older than an earlier response.
        unavailable_seconds: the longest time without a response for one customer.
    """

    totals: set[tuple[str, int, Decimal]] = field(default_factory=set)
    backwards: list[str] = field(default_factory=list)
    answers: int = 0
    failed: int = 0
    unavailable_seconds: float = 0.0


class Callers(BackgroundThreads):
    """Reads the balances of some customers in turn, from all instances in turn, as behind a load balancer.

    Attributes:
        histories: gets the responses.
    """

    def __init__(self, stack: LocalStack, http: httpx.Client, cards: list[str], histories: Histories) -> None:
        self._http, self.histories = http, histories
        self._urls = [api.url for api in stack.apis]
        self._cards = cards
        super().__init__(self._read)
        self.readings = Readings()

    def _read(self) -> None:
        seen: dict[str, int] = {}
        outages = Outages()
        turn = answered = 0
        while not self.stopping.wait(_PAUSE_SECONDS):
            card = self._cards[answered // len(self._urls) % len(self._cards)]
            # Without an answer, the caller asks the next instance about the same customer.
            answered += self._ask(self._urls[turn % len(self._urls)], card, seen, outages)
            turn += 1
        self._note(outages.end_all())

    def _ask(self, url: str, card: str, seen: dict[str, int], outages: Outages) -> bool:
        """Ask an instance once. Returns whether it has answered."""
        asked = time.monotonic()
        answer = read_balance(self._http, _CALLER_SECONDS, url, card, self.histories)
        if answer is None:
            self.readings.failed += 1
            outages.begin(card, asked)
            return False
        self._note(outages.end(card))
        self.readings.answers += 1
        if answer.status_code == httpx.codes.OK:
            self._take(card, answer, seen)
        elif card in seen and answer.headers.get("loyalty-stale") != "true":
            who = answer.headers.get("loyalty-served-by", url)
            self.readings.backwards.append(f"{card}: {who} does not know it, after sequence {seen[card]} was served")
        return True

    def _take(self, card: str, answer: httpx.Response, seen: dict[str, int]) -> None:
        body = answer.json()
        sequence = int(body["Sequence"])
        self.readings.totals.add((card, sequence, Decimal(body["TotalLoyaltyPoints"])))
        if answer.headers["loyalty-stale"] != "true" and sequence < seen.get(card, 0):
            self.readings.backwards.append(f"{card}: sequence {sequence} after {seen[card]}")
        seen[card] = max(sequence, seen.get(card, 0))

    def _note(self, seconds: float) -> None:
        self.readings.unavailable_seconds = max(self.readings.unavailable_seconds, seconds)


class Watchers(BackgroundThreads):
    """Reads balances. Each watcher asks one instance about one customer, and waits for the answer.

    So after a pause an instance has a waiting request for each customer. Meanwhile other watchers have read newer
    balances from another instance, which a stale answer would contradict.
    """

    def __init__(self, stack: LocalStack, http: httpx.Client, cards: list[str], histories: Histories) -> None:
        self._http, self._histories = http, histories
        super().__init__(*(partial(self._watch, api.url, card) for api in stack.apis for card in cards))

    def _watch(self, url: str, card: str) -> None:
        while not self.stopping.wait(_WATCH_SECONDS):
            read_balance(self._http, _TIMEOUT_SECONDS, url, card, self._histories)


def read_balance(
    http: httpx.Client, client_timeout: float, url: str, card: str, histories: Histories, **parameters: int
) -> httpx.Response | None:
    """Read a balance once, and add a response of 200 or 404 to the histories. None for any other response."""
    start = time.monotonic()
    try:
        answer = http.get(f"{url}/v1/customers/{card}/balance", params=parameters, timeout=client_timeout)
    except httpx.HTTPError:
        return None
    if answer.status_code not in {httpx.codes.OK, httpx.codes.NOT_FOUND}:
        return None
    balance = answer.json() if answer.status_code == httpx.codes.OK else None
    is_stale = answer.headers.get("loyalty-stale") == "true"
    histories.add_read(card, start, time.monotonic(), balance, is_stale=is_stale)
    return answer
