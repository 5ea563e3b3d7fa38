"""Prometheus metrics of the webhook process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_DELAY_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)


class Metrics:
    """The metrics of one process. Labels name endpoints, never customers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.messages = Counter(
            "loyalty_webhook_messages_total",
            "Notifications that need no more attempts, by outcome: delivered or dead.",
            ["endpoint", "outcome"],
            registry=registry,
        )
        self.attempts = Counter(
            "loyalty_webhook_attempts_total",
            "Attempts by the status of the response; none if no response came.",
            ["endpoint", "status"],
            registry=registry,
        )
        self.delay = Histogram(
            "loyalty_webhook_delay_seconds",
            "Time from the append to the topic until the endpoint accepted the notification.",
            ["endpoint"],
            buckets=_DELAY_BUCKETS,
            registry=registry,
        )
        self.lag = Gauge(
            "loyalty_webhook_lag",
            "Records of the topic loyalty that the endpoint has not got yet.",
            ["endpoint", "topic"],
            registry=registry,
        )
