"""Prometheus metrics of the ledger process. No label has a card number or a pseudonym."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector


class Metrics:
    """The metrics of one ledger process, in their own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.ready = Gauge(
            "loyalty_ledger_ready",
            "0 while the ledger cannot read from Kafka or write to its database.",
            registry=registry,
        )
        self.entries = Counter("loyalty_ledger_entries", "Entries appended.", registry=registry)
        self.repeats = Counter(
            "loyalty_ledger_repeats", "Records whose entry was in the ledger already.", registry=registry
        )
        self.undecodable = Counter(
            "loyalty_ledger_undecodable_records", "Records that are not entries.", registry=registry
        )
        self.erased = Counter("loyalty_ledger_erased_accounts", "Accounts whose card was erased.", registry=registry)
        self.gaps = Gauge(
            "loyalty_ledger_gaps", "Ranges of missing sequence numbers, of all accounts.", registry=registry
        )
        self.gaps_opened = Counter(
            "loyalty_ledger_gaps_opened", "Gaps found, also those that were filled later.", registry=registry
        )
        self.position = Gauge(
            "loyalty_ledger_position", "Offset of the next record to append.", ["topic", "partition"], registry=registry
        )
        self.lag = Gauge(
            "loyalty_ledger_lag_records", "Records of a partition not yet appended.", ["partition"], registry=registry
        )
        self.transaction_seconds = Histogram(
            "loyalty_ledger_transaction_seconds", "Duration of a transaction of up to 5,000 records.", registry=registry
        )
