"""The metrics of requests."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from api.http.metrics import REQUEST_BUCKETS, Metrics

REQUESTS = [
    ("GET", "/a", 200, 0.0),
    ("GET", "/a", 200, 0.25),  # a bucket's bound belongs to it
    ("GET", "/a", 404, 0.3125),
    ("GET", "/a", 200, 31.0),  # above the last bound
    ("POST", "/a", 201, 0.001),
]
"""Durations whose sum is exact in any order."""


def test_the_metrics_of_requests_have_the_lines_of_the_library() -> None:
    """The lines are equal to those of a labelled counter and histogram of prometheus_client."""
    metrics, registry = Metrics(), CollectorRegistry()
    counter = Counter("loyalty_http_requests", "-", ["method", "route", "status"], registry=registry)
    histogram = Histogram(
        "loyalty_http_request_duration_seconds", "-", ["method", "route"], buckets=REQUEST_BUCKETS, registry=registry
    )
    for method, route, status, seconds in REQUESTS:
        metrics.requests.observe(method, route, status, seconds)
        counter.labels(method, route, str(status)).inc()
        histogram.labels(method, route).observe(seconds)

    def samples(exposition: bytes) -> list[str]:
        lines = exposition.decode().splitlines()
        return sorted(line for line in lines if line.startswith("loyalty_http") and "_created" not in line)

    assert samples(generate_latest(registry)) == samples(metrics.exposition())
