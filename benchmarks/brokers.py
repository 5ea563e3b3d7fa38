"""Runs the broker of a benchmark."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.local.broker import LocalBroker
from infra.local.stack import private_settings
from services.settings import Settings


@contextmanager
def broker(directory: Path, **changes: object) -> Iterator[Settings]:
    """Run a broker. Yields the settings for clients and for the pipeline.

    Args:
        changes: other values of settings.
    """
    settings = private_settings(directory, spark_master="local[2]", log_format="json", **changes)
    broker = LocalBroker(directory, int(settings.kafka_bootstrap_servers.rpartition(":")[2]))
    broker.start()
    try:
        yield settings
    finally:
        broker.stop()
