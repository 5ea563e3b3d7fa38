"""The figures of a status at one moment, and the rates between two moments."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from schemas import topics

_SHARES = (0.5, 0.99)


class Part(NamedTuple):
    """A process of the system. ``problem`` says why it does not work; None if it works."""

    name: str
    address: str
    problem: str | None


class Lag(NamedTuple):
    """The records of a topic that a reader has not read yet."""

    reader: str
    topic: str
    records: int


class QueryWork(NamedTuple):
    """What a query has done since its process started; ``seconds`` is the total duration of its micro-batches."""

    records: float = 0.0
    batches: float = 0.0
    seconds: float = 0.0


class Freshness(NamedTuple):
    """The freshness of the balances on the instance that answered, from its histogram since its start.

    Attributes:
        balances: the number of balances that it has read.
        within: the quantiles 0.5 and 0.99 of the time from the append of an invoice or a command until its balance was
            in the store, in seconds. Each value is the upper limit of a bucket; None if it is above the last limit.
        longest: the last finite limit, in seconds.
    """

    balances: int
    within: dict[float, float | None]
    longest: float


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the system at one moment.

    Attributes:
        time: in seconds since the epoch.
        appended: the number of records that each topic has ever had, by topic. Empty if Kafka does not answer.
        work: the work of each query, by its name. Empty if the pipeline does not answer.
        balances: the cumulative number of balances by the upper bound of their freshness in seconds, as in Prometheus.
        records: the number of records that each topic has, by topic. Empty if Kafka does not answer.
        lags: the lags of all readers that answered. A reader has none if the ends of one of its topics are not known.
        instances: the instances of the API as ``GET /v1/instances`` shows them.
    """

    time: float
    parts: list[Part]
    appended: dict[str, int]
    work: dict[str, QueryWork]
    balances: dict[float, float]
    records: dict[str, int]
    lags: list[Lag]
    instances: list[dict[str, Any]]

    @property
    def freshness(self) -> Freshness | None:
        """How fresh the balances are; None without balances."""
        return _freshness(self.balances)

    @property
    def dead_letters(self) -> int | None:
        """The number of records in dead-letters; None if it is not known."""
        return self.records.get(topics.DEAD_LETTERS.name)


class Rates(NamedTuple):
    """What happened between two moments.

    Attributes:
        topics: the records per second that were appended to each topic.
        queries: the records per second that each query has read.
        batch_seconds: the mean duration of a micro-batch of each query that has completed one.
        freshness: the freshness of the balances in this time; None without balances.
    """

    topics: dict[str, float]
    queries: dict[str, float]
    batch_seconds: dict[str, float]
    freshness: Freshness | None


def rates_between(before: Status, after: Status) -> Rates:
    """The rates between two moments. A counter that is lower after a restart of its process counts as 0."""
    seconds = max(after.time - before.time, 0.001)
    work = {
        name: QueryWork(*(max(0.0, new - old) for new, old in zip(done, before.work.get(name, done), strict=True)))
        for name, done in after.work.items()
    }
    counts = {le: max(0.0, count - before.balances.get(le, 0.0)) for le, count in after.balances.items()}
    return Rates(
        {name: max(0, count - before.appended.get(name, count)) / seconds for name, count in after.appended.items()},
        {name: done.records / seconds for name, done in work.items()},
        {name: done.seconds / done.batches for name, done in work.items() if done.batches},
        _freshness(counts),
    )


def _freshness(balances: Mapping[float, float]) -> Freshness | None:
    buckets = sorted(balances.items())
    if not buckets or not (total := buckets[-1][1]):
        return None
    limits = [(le, count) for le, count in buckets if math.isfinite(le)]
    within = {share: next((le for le, count in limits if count >= share * total), None) for share in _SHARES}
    return Freshness(int(total), within, limits[-1][0])
