"""A minute of the soak (``make bench-peers ONLY=soak``): what an API instance keeps does not grow with what it does."""

from pathlib import Path

import psutil

from services.settings import Settings
from tests.support.kafka import BalanceWriter
from tests.support.processes import ApiProcess, balance_partitions

CARDS = [f"CARD{number}" for number in range(60)]
UPDATES, READS = 20_000, 4_000
WARM_UP, ROUNDS = 2, 3
MOST_BYTES_AN_EVENT = 200
"""What the allocator's own growth may come to; a record or a request that is kept takes more."""


def test_updates_and_reads_leave_nothing_behind(
    settings: Settings,
    topics_created: list[str],  # noqa: ARG001  # there when it writes
    tmp_path: Path,
) -> None:
    """A store in memory, as RocksDB's buffers fill before they are emptied; the same customers again and again."""
    changelog = BalanceWriter(settings)
    with ApiProcess(settings.model_copy(update={"state_store": "memory"}), tmp_path / "api.log") as api:
        api.wait_until_ready()
        after_updates = [_updated(changelog, api, number) for number in range(WARM_UP + ROUNDS)]
        after_reads = [_read(api) for _ in range(WARM_UP + ROUNDS)]

    assert _grown(after_updates) / UPDATES < MOST_BYTES_AN_EVENT, after_updates
    assert _grown(after_reads) / READS < MOST_BYTES_AN_EVENT, after_reads


def _grown(sizes: list[int]) -> float:
    """Bytes a round, once warm."""
    return (sizes[-1] - sizes[WARM_UP - 1]) / ROUNDS


def _updated(changelog: BalanceWriter, api: ApiProcess, number: int) -> int:
    """The size of the process once it has applied a round of updates, bytes."""
    for step in range(UPDATES):
        sequence = number * UPDATES + step + 1
        changelog.balance(CARDS[step % len(CARDS)], f"{sequence}.00", sequence)
    changelog.flush()
    applied = (number + 1) * UPDATES
    api.wait_until(lambda report: sum(each["applied"] for each in balance_partitions(report)) == applied)
    return _size(api)


def _read(api: ApiProcess) -> int:
    for step in range(READS):
        assert api.balance(CARDS[step % len(CARDS)]).is_success
    return _size(api)


def _size(api: ApiProcess) -> int:
    size: int = psutil.Process(api.pid).memory_info().rss
    return size
