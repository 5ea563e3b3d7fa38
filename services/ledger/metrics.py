"""Prometheus metrics of the ledger process. No label ever holds a card number, nor a pseudonym."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector


class Metrics:
    """The registry of one ledger process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.ready = self._gauge("loyalty_ledger_ready", "1 while Kafka and the database can be reached.")
        self.entries = self._counter("loyalty_ledger_entries", "Entries appended.")
        self.repeats = self._counter("loyalty_ledger_repeats", "Records whose entry was there already.")
        self.undecodable = self._counter("loyalty_ledger_undecodable_records", "Records that are no entry.")
        self.erased = self._counter("loyalty_ledger_erased_accounts", "Accounts that lost their card.")
        self.gaps = self._gauge("loyalty_ledger_gaps", "Ranges of sequences that are missing, of all accounts.")
        self.position = Gauge(
            "loyalty_ledger_position", "Offset of the next record to append.", ["partition"], registry=self.registry
        )
        self.lag = Gauge(
            "loyalty_ledger_lag_records",
            "Records of a partition not yet appended.",
            ["partition"],
            registry=self.registry,
        )
        self.transaction_seconds = Histogram(
            "loyalty_ledger_transaction_seconds",
            "Duration of a transaction, of up to 5,000 records.",
            registry=self.registry,
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)
