"""Prometheus metrics of one app. Labels have templates of routes and names of stores, never text of a request."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from services.state_stores.contract import StoreError
from services.state_stores.materialiser import LocalStores
from services.state_stores.task import StoreTask

# A local read takes well under a millisecond, a long poll up to 30 s.
REQUEST_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
# A micro-batch takes from tenths of a second to minutes.
_FRESHNESS_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 30, 60, 300, 3600)


class Metrics:
    """All metrics of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = RequestMetrics()
        self.registry.register(self.requests)
        self.forwarded = Counter(
            "loyalty_forwarded_requests",
            "Requests forwarded to peers. Outcomes: answered, refused, unreachable, timeout.",
            ["outcome"],
            registry=self.registry,
        )
        self.stale_answers = Counter(
            "loyalty_stale_answers", "Responses of this instance from a standby copy.", registry=self.registry
        )
        self.lost_audit_records = Counter(
            "loyalty_audit_lost_records", "Audit records that did not reach their topic.", registry=self.registry
        )
        self.freshness = Histogram(
            "loyalty_balance_freshness_seconds",
            "Time from the append of an invoice or a command in Kafka to its balance in the store. Not measured during "
            "a restore.",
            buckets=_FRESHNESS_BUCKETS,
            registry=self.registry,
        )

    def watch(self, stores: LocalStores, earliest_expiry: Callable[[], float | None] = lambda: None) -> None:
        """Report the progress of these stores, and the earliest expiry of an API key (seconds), at each scrape."""
        self.registry.register(_StoresCollector(stores, earliest_expiry))

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class _Outcome:
    """Requests of one method, route and status: the number in each bucket, and the sum of their durations."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(REQUEST_BUCKETS) + 1)
        self.seconds = 0.0


class RequestMetrics(Collector):
    """Counts and times requests. Only the thread of the event loop may call ``observe``.

    The counters and histograms of prometheus_client take a lock for each number and search their buckets linearly.
    Decision 0017 has the cost of that.
    """

    def __init__(self) -> None:
        self._outcomes: defaultdict[tuple[str, str, int], _Outcome] = defaultdict(_Outcome)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        outcome = self._outcomes[method, route, status]
        outcome.counts[bisect_left(REQUEST_BUCKETS, seconds)] += 1
        outcome.seconds += seconds

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("loyalty_http_requests", "Responses sent.", labels=["method", "route", "status"])
        durations = HistogramMetricFamily(
            "loyalty_http_request_duration_seconds",
            "Time from the head of the request to the last byte of the response, with long polls.",
            labels=["method", "route"],
        )
        of_routes: defaultdict[tuple[str, str], list[_Outcome]] = defaultdict(list)
        for (method, route, status), outcome in self._outcomes.items():
            requests.add_metric([method, route, str(status)], sum(outcome.counts))
            of_routes[method, route].append(outcome)
        bounds = [*map(floatToGoString, REQUEST_BUCKETS), "+Inf"]
        for labels, outcomes in of_routes.items():
            counts = accumulate(map(sum, zip(*(each.counts for each in outcomes), strict=True)))
            durations.add_metric(labels, list(zip(bounds, counts, strict=True)), sum(each.seconds for each in outcomes))
        yield requests
        yield durations


_StoreMetrics = tuple[tuple[str, str, Callable[[StoreTask], float]], ...]
"""The name, help and value of some metrics of a store partition."""

_STORE_GAUGES: _StoreMetrics = (
    ("loyalty_store_restored", "1 after the restore.", lambda task: task.serving),
    (
        "loyalty_store_damaged",
        "1 after a read has found damage, until the rebuild.",
        lambda task: task.store.damage is not None,
    ),
    (
        "loyalty_store_rebuild_time_seconds",
        "When the local copy was deleted to read it again, since the epoch; 0 if it was kept.",
        lambda task: task.progress.rebuilt_at,
    ),
    ("loyalty_store_restored_ratio", "Completed share of the restore.", lambda task: task.progress.restored_share),
    ("loyalty_store_lag_records", "Changelog records that are not applied yet.", lambda task: task.progress.lag),
    ("loyalty_store_position_offset", "The next offset to apply.", lambda task: task.progress.position),
    ("loyalty_store_entries", "Keys in the store.", lambda task: task.store.count()),
)
_STORE_COUNTERS: _StoreMetrics = (
    ("loyalty_store_applied_records", "Records applied.", lambda task: task.progress.applied),
    ("loyalty_store_undecodable_records", "Records that cannot be read.", lambda task: task.progress.undecodable),
    ("loyalty_store_ignored_records", "Records with an old sequence.", lambda task: task.progress.ignored),
)


class _StoresCollector(Collector):
    """Reads the progress of the stores and the expiry of API keys at each scrape."""

    def __init__(self, stores: LocalStores, earliest_expiry: Callable[[], float | None]) -> None:
        self._stores = stores
        self._earliest_expiry = earliest_expiry

    def collect(self) -> Iterator[Metric]:
        for metrics, family_of in ((_STORE_GAUGES, GaugeMetricFamily), (_STORE_COUNTERS, CounterMetricFamily)):
            for name, text, value_of in metrics:
                family = family_of(name, text, labels=["store", "partition"])
                for store_name, store in self._stores.all_by_name.items():
                    for partition, task in store.tasks.items():
                        with suppress(StoreError):  # The store is closed, so its number of keys is not known.
                            family.add_metric([store_name, str(partition)], float(value_of(task)))
                yield family
        yield GaugeMetricFamily(
            "loyalty_materialiser_alive",
            "1 while the materialiser thread works.",
            float(self._stores.materialiser.alive),
        )
        yield GaugeMetricFamily(
            "loyalty_changelogs_followed",
            "0 while the stores cannot follow their changelogs: Kafka does not answer, or the disk is full.",
            float(self._stores.materialiser.kafka_error is None),
        )
        yield GaugeMetricFamily(
            "loyalty_api_key_expiry_time_seconds",
            "When the first of the valid API keys expires, since the epoch. No sample without a valid key.",
            self._earliest_expiry(),
        )
