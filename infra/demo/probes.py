"""What the running pipeline and the API say over HTTP."""

import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from decimal import Decimal
from threading import Event
from urllib.parse import quote

import httpx
import stamina
from prometheus_client.parser import text_string_to_metric_families

from infra.demo.comparison import Balance
from infra.demo.topic_reader import Positions

_LONG_POLL_SECONDS = 10
_TIMEOUT_SECONDS = _LONG_POLL_SECONDS + 5
_IDLE_SECONDS = 1.0
"""Shorter than a server keeps an idle connection (uvicorn: 5 s), so that none is used that it is about to close."""
_PAUSE_SECONDS = 0.1


def _client() -> httpx.Client:
    # A proxy of the environment has no business between two processes of one machine.
    limits = httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS)
    return httpx.Client(timeout=_TIMEOUT_SECONDS, limits=limits, trust_env=False)


class PipelineProgress:
    """The pipeline's metrics as they were when last read."""

    def __init__(self, metrics_url: str) -> None:
        self._client, self._url = _client(), metrics_url
        self._positions: dict[tuple[str, str], Positions] = {}
        self._repeats: Counter[str] = Counter()

    def close(self) -> None:
        self._client.close()

    def read(self) -> None:
        """Ask again; while the pipeline does not answer, the last known stays."""
        try:
            text = self._client.get(self._url).text
        except httpx.HTTPError:
            return
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                query = sample.labels.get("query", "")
                if sample.name == "loyalty_query_position":
                    positions = self._positions.setdefault((query, sample.labels["topic"]), {})
                    positions[int(sample.labels["partition"])] = int(sample.value)
                elif sample.name == "loyalty_query_repeats_dropped_total":
                    self._repeats[query] = int(sample.value)

    def repeats(self, query: str) -> int:
        """Records that the query has dropped because it had seen them."""
        return self._repeats[query]

    def positions(self, query: str, topic: str) -> Positions:
        """The next offset that the query reads of each partition of a topic, as named on the broker."""
        return self._positions.get((query, topic), {})


def reached(positions: Positions, ends: Positions) -> bool:
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())


class BalanceReader:
    """Asks the API for balances."""

    def __init__(self, url: str, watchers: int) -> None:
        self._client, self._url = _client(), url
        self._watchers = ThreadPoolExecutor(max_workers=max(1, watchers))
        self._given_up = Event()
        self._seconds: list[Future[float | None]] = []

    def close(self) -> None:
        """End all watching at once."""
        self._given_up.set()
        self._watchers.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def watch(self, card: str, sequence: int) -> None:
        """Measure from now how long it takes until the balance of a customer has that sequence."""
        self._seconds.append(self._watchers.submit(self._seconds_until, card, sequence, time.perf_counter()))

    @property
    def watched(self) -> int:
        """How many watched balances have been seen."""
        return sum(watch.done() for watch in self._seconds)

    def seconds(self) -> list[float]:
        """How long each watched balance took; those that have not come by now are left out."""
        self._given_up.set()
        return sorted(seconds for watch in self._seconds if (seconds := watch.result()) is not None)

    def _seconds_until(self, card: str, sequence: int, published: float) -> float | None:
        while True:
            asking_for_the_last_time = self._given_up.is_set()
            timeout = 0 if asking_for_the_last_time else _LONG_POLL_SECONDS
            try:
                answer = self._get(card, {"minSequence": sequence, "timeout": timeout})
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.status_code == httpx.codes.OK:
                return time.perf_counter() - published
            if asking_for_the_last_time:
                return None
            self._given_up.wait(_PAUSE_SECONDS)

    def customers(self) -> tuple[int, Positions]:
        """How many customers have a balance, and where the API is in the changelog of each partition."""
        try:
            reports = self._client.get(f"{self._url}/readyz").json().get("partitions", [])
            partitions = [report for report in reports if report["store"] == "customer-balances"]
        except (httpx.HTTPError, ValueError):
            return 0, {}
        return (
            sum(report["entries"] or 0 for report in partitions),
            {report["partition"]: report["position"] for report in partitions},
        )

    def balances(self, cards: Iterable[str]) -> dict[str, Balance | None]:
        """What is served for each customer now; None where it is no balance."""
        wanted = list(cards)
        return dict(zip(wanted, self._watchers.map(self._balance, wanted), strict=True))

    def statuses(self, cards: Iterable[str]) -> dict[str, int]:
        """The HTTP status of each customer's look-up."""
        return {card: self._look_up(card).status_code for card in cards}

    def _balance(self, card: str) -> Balance | None:
        answer = self._look_up(card)
        if answer.status_code != httpx.codes.OK:
            return None
        found = answer.json()
        return Balance(Decimal(found["TotalLoyaltyPoints"]), found["Sequence"])

    @stamina.retry(on=httpx.TransportError, attempts=3)
    def _look_up(self, card: str) -> httpx.Response:
        return self._get(card, {})

    def _get(self, card: str, parameters: dict[str, int]) -> httpx.Response:
        return self._client.get(f"{self._url}/v1/customers/{quote(card, safe='')}/balance", params=parameters)
