"""Readers of the outputs: the metrics of the pipeline, the balances of the API, and the database of the ledger."""

import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from threading import Event
from urllib.parse import quote

import httpx
import stamina
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from infra.demo.comparison import Balance, LedgerEntry
from infra.demo.topic_reader import Positions
from services.api_keys.client import authorization
from services.ledger.database import reading_engine
from services.ledger.positions import stored_offsets
from services.ledger.tables import ACCOUNT, ENTRY

_LONG_POLL_SECONDS = 10
_TIMEOUT_SECONDS = _LONG_POLL_SECONDS + 5
_PAUSE_SECONDS = 0.1


def _client(key_file: Path | None) -> httpx.Client:
    # A request within one machine must not use a proxy (``trust_env``).
    limits = httpx.Limits(max_connections=None)
    headers = authorization(key_file)
    return httpx.Client(timeout=_TIMEOUT_SECONDS, limits=limits, headers=headers, trust_env=False)


class PipelineProgress:
    """The metrics of the pipeline at the last read."""

    def __init__(self, metrics_url: str, key_file: Path | None) -> None:
        self._client, self._url = _client(key_file), metrics_url
        self._positions: dict[tuple[str, str], Positions] = {}
        self._repeats: Counter[str] = Counter()

    def close(self) -> None:
        self._client.close()

    def read(self) -> None:
        """Read the metrics. The last values stay if the pipeline does not respond."""
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
        """The number of duplicates that the query has dropped."""
        return self._repeats[query]

    def positions(self, query: str, topic: str) -> Positions:
        """The next offset of the query in each partition of a topic."""
        return self._positions.get((query, topic), {})


def reached(positions: Positions, ends: Positions) -> bool:
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())


class LedgerReader:
    """Reads the database of the ledger."""

    def __init__(self, url: str) -> None:
        self._engine = reading_engine(url)

    def close(self) -> None:
        self._engine.dispose()

    def positions(self) -> Positions:
        """The next offset of the ledger in each partition of loyalty; empty while the database does not answer."""
        try:
            with self._engine.connect() as connection:
                return stored_offsets(connection)
        except DBAPIError:
            return {}

    def entries(self) -> list[LedgerEntry]:
        columns = (ACCOUNT.c.card, ENTRY.c.sequence, ENTRY.c.kind, ENTRY.c.points, ENTRY.c.total)
        with self._engine.connect() as connection:
            rows = connection.execute(select(*columns).join(ENTRY)).all()
        return [LedgerEntry(*row[:3], Decimal(row.points) / 100, Decimal(row.total) / 100) for row in rows]


def _path_of_balance(card: str) -> str:
    """The path of a balance. Only the route of a store accepts a card with a slash."""
    quoted = quote(card, safe="")
    return f"/v1/stores/customer-balances/keys/{quoted}" if "/" in card else f"/v1/customers/{quoted}/balance"


class BalanceReader:
    """Reads balances from the API."""

    def __init__(self, url: str, watchers: int, key_file: Path | None) -> None:
        self._client, self._url = _client(key_file), url
        self._watchers = ThreadPoolExecutor(max_workers=max(1, watchers))
        self._ending = Event()
        self._seconds: list[Future[float | None]] = []

    def close(self) -> None:
        """End all measurements immediately."""
        self._ending.set()
        self._watchers.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def watch(self, card: str, sequence: int) -> None:
        """Measure the time until the balance of a customer has this sequence."""
        self._seconds.append(self._watchers.submit(self._seconds_until, card, sequence, time.perf_counter()))

    @property
    def watched(self) -> int:
        """The number of finished measurements."""
        return sum(watch.done() for watch in self._seconds)

    def seconds(self) -> list[float]:
        """The seconds of each finished measurement, ascending. Ends all other measurements."""
        self._ending.set()
        return sorted(seconds for watch in self._seconds if (seconds := watch.result()) is not None)

    def _seconds_until(self, card: str, sequence: int, published: float) -> float | None:
        while True:
            is_last_attempt = self._ending.is_set()
            timeout = 0 if is_last_attempt else _LONG_POLL_SECONDS
            try:
                answer = self._get(card, {"minSequence": sequence, "timeout": timeout})
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.status_code == httpx.codes.OK:
                return time.perf_counter() - published
            if is_last_attempt:
                return None
            self._ending.wait(_PAUSE_SECONDS)

    def customers(self) -> tuple[int, Positions]:
        """The number of customers with a balance, and the position of the API in each partition of the changelog."""
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
        """The balance of each customer; None if there is none."""
        wanted = list(cards)
        return dict(zip(wanted, self._watchers.map(self._balance, wanted), strict=True))

    def moved(self, cards: Iterable[str]) -> dict[str, str | None]:
        """The new card of each of these cards; None if the API does not report a replacement."""
        answers = {card: self._get_balance(card) for card in cards}
        gone = {card: answer.status_code == httpx.codes.GONE for card, answer in answers.items()}
        return {card: answer.json().get("newCard") if gone[card] else None for card, answer in answers.items()}

    def statuses(self, cards: Iterable[str]) -> dict[str, int]:
        """The HTTP status of the balance of each customer."""
        return {card: self._get_balance(card).status_code for card in cards}

    def _balance(self, card: str) -> Balance | None:
        answer = self._get_balance(card)
        if answer.status_code != httpx.codes.OK:
            return None
        read = answer.json()
        found = read.get("value", read)
        expires, expiring = found["NextExpiryTime"], found["NextExpiryPoints"]
        time = int(datetime.fromisoformat(expires).timestamp() * 1000) if expires else 0
        return Balance(
            Decimal(found["TotalLoyaltyPoints"]),
            found["Sequence"],
            Decimal(found["PendingLoyaltyPoints"]),
            None if expiring is None else (time, Decimal(expiring)),
        )

    @stamina.retry(on=httpx.TransportError, attempts=3)
    def _get_balance(self, card: str) -> httpx.Response:
        return self._get(card, {})

    def _get(self, card: str, parameters: dict[str, int]) -> httpx.Response:
        while True:
            answer = self._client.get(self._url + _path_of_balance(card), params=parameters)
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                return answer
            self._ending.wait(float(answer.headers["Retry-After"]))
