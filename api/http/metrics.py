"""Prometheus metrics of one app. The values of labels are route templates and store names, and no text of a request."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from services.state_stores.contract import StoreError
from services.state_stores.store import LocalStores
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
        self._freshness = Histogram(
            "loyalty_balance_freshness_seconds",
            "Time from the append of an invoice in Kafka to its balance in the store. Not measured during a restore.",
            buckets=_FRESHNESS_BUCKETS,
            registry=self.registry,
        )

    def observe_freshness(self, seconds: float) -> None:
        self._freshness.observe(seconds)

    def watch(self, stores: LocalStores) -> None:
        """Report the progress of these stores at each scrape."""
        self.registry.register(_StoresCollector(stores))

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


class _StoresCollector(Collector):
    """Reads the progress of the stores at each scrape."""

    def __init__(self, stores: LocalStores) -> None:
        self._stores = stores

    def collect(self) -> Iterator[Metric]:
        labels = ["store", "partition"]
        gauges = {
            "restored": GaugeMetricFamily("loyalty_store_restored", "1 after the restore.", labels=labels),
            "damaged": GaugeMetricFamily(
                "loyalty_store_damaged", "1 after a read has found damage, until the rebuild.", labels=labels
            ),
            "share": GaugeMetricFamily(
                "loyalty_store_restored_ratio", "Completed share of the restore.", labels=labels
            ),
            "lag": GaugeMetricFamily(
                "loyalty_store_lag_records", "Changelog records that are not applied yet.", labels=labels
            ),
            "position": GaugeMetricFamily("loyalty_store_position_offset", "The next offset to apply.", labels=labels),
            "entries": GaugeMetricFamily("loyalty_store_entries", "Keys in the store.", labels=labels),
        }
        counters = {
            "applied": CounterMetricFamily("loyalty_store_applied_records", "Records applied.", labels=labels),
            "undecodable": CounterMetricFamily(
                "loyalty_store_undecodable_records", "Records that cannot be read.", labels=labels
            ),
            "ignored": CounterMetricFamily(
                "loyalty_store_ignored_records", "Records with an old sequence.", labels=labels
            ),
        }
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {**gauges, **counters}
        rebuilds = CounterMetricFamily(
            "loyalty_store_rebuilds", "Local copies that were deleted and read again.", labels=labels
        )
        for name, store in self._stores.by_name.items():
            for partition, number in store.rebuilds.items():
                rebuilds.add_metric([name, str(partition)], number)
            for partition, task in store.tasks.items():
                for key, value in _sample(task).items():
                    families[key].add_metric([name, str(partition)], value)
        yield from families.values()
        yield rebuilds
        alive = GaugeMetricFamily("loyalty_materialiser_alive", "1 while the materialiser thread works.")
        alive.add_metric([], float(self._stores.materialiser.alive))
        yield alive


def _sample(task: StoreTask) -> dict[str, float]:
    progress = task.progress
    sample = {
        "restored": float(task.serving),
        "damaged": float(task.store.damage is not None),
        "share": progress.restored_share,
        "lag": progress.lag,
        "position": progress.position,
        "applied": progress.applied,
        "undecodable": progress.undecodable,
        "ignored": progress.ignored,
    }
    with suppress(StoreError):  # The number of entries is then unknown.
        sample["entries"] = task.store.count()
    return sample
