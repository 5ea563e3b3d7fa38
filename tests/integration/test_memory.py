"""The memory of an API instance does not grow with its work. A short form of ``make soak``."""

from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import psutil

from services.settings import Settings
from tests.support.kafka import BalanceWriter
from tests.support.processes import ApiProcess, balance_partitions

CARDS = [f"CARD{number}" for number in range(60)]
UPDATES, READS = 20_000, 4_000
WARM_UP, ROUNDS = 2, 3
MOST_BYTES_AN_EVENT = 200
"""The allowed growth of the allocator. A leaked record or request takes more."""


def test_memory_does_not_grow_with_updates_and_reads(
    settings: Settings,
    topics_created: list[str],  # noqa: ARG001  # creates the topics first
    tmp_path: Path,
) -> None:
    """The test uses a memory store, because the buffers of RocksDB grow until they are flushed."""
    changelog = BalanceWriter(settings)
    with ApiProcess(settings.model_copy(update={"state_store": "memory"}), tmp_path / "api.log") as api:
        api.wait_until_ready()
        after_updates = [_updated(changelog, api, number) for number in range(WARM_UP + ROUNDS)]
        after_reads = [_read(api) for _ in range(WARM_UP + ROUNDS)]

    assert _grown(after_updates) / UPDATES < MOST_BYTES_AN_EVENT, after_updates
    assert _grown(after_reads) / READS < MOST_BYTES_AN_EVENT, after_reads


def _grown(sizes: list[int]) -> float:
    """Growth in bytes a round, after the warm-up."""
    return (sizes[-1] - sizes[WARM_UP - 1]) / ROUNDS


def _updated(changelog: BalanceWriter, api: ApiProcess, number: int) -> int:
    """The size of the process in bytes after one round of updates."""
    for step in range(UPDATES):
        sequence = number * UPDATES + step + 1
        changelog.balance(CARDS[step % len(CARDS)], f"{sequence}.00", sequence)
    changelog.flush()
    applied = (number + 1) * UPDATES
    api.wait_until(lambda report: sum(each["applied"] for each in balance_partitions(report)) == applied)
    return _size(api)


def _read(api: ApiProcess) -> int:
    """The size of the process in bytes after one round of reads. httpx would need more time than the API."""
    with closing(HTTPConnection(api.url.removeprefix("http://"))) as connection:
        for step in range(READS):
            connection.request("GET", f"/v1/customers/{CARDS[step % len(CARDS)]}/balance")
            response = connection.getresponse()
            response.read()
            assert 200 == response.status
    return _size(api)


def _size(api: ApiProcess) -> int:
    size: int = psutil.Process(api.pid).memory_info().rss
    return size
