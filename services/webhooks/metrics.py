"""What can be watched of the deliveries."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_DELAYS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)


class Metrics:
    """The metrics of one process; labels are names of endpoints, never of customers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.messages = Counter(
            "loyalty_webhook_messages_total",
            "Notifications that are done with: delivered, or dead.",
            ["endpoint", "outcome"],
            registry=registry,
        )
        self.attempts = Counter(
            "loyalty_webhook_attempts_total",
            "Tries by the status of the answer; none: there was no answer.",
            ["endpoint", "status"],
            registry=registry,
        )
        self.delay = Histogram(
            "loyalty_webhook_delay_seconds",
            "From when the broker had the notification until the endpoint did.",
            ["endpoint"],
            buckets=_DELAYS,
            registry=registry,
        )
        self.lag = Gauge(
            "loyalty_webhook_lag",
            "Records of the topic loyalty that the endpoint is behind.",
            ["endpoint"],
            registry=registry,
        )
