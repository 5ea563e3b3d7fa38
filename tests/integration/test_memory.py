"""A minute of the soak (``make bench-peers ONLY=soak``): what an API instance keeps does not grow with what it does."""

from pathlib import Path

import psutil

from services.settings import Settings
from tests.api_process import ApiProcess, Changelog, balances_of

CARDS = [f"CARD{number}" for number in range(60)]
UPDATES, READS = 20_000, 1_000
ROUNDS = 3
MOST_BYTES_AN_EVENT = 100
"""Less than the smallest thing that Python could forget to let go."""


def test_updates_and_reads_leave_nothing_behind(
    settings: Settings,
    topics_created: list[str],  # noqa: ARG001  # there when it writes
    tmp_path: Path,
) -> None:
    """A store in memory, as RocksDB's buffers fill before they are emptied; the same customers again and again."""
    changelog = Changelog(settings)
    with ApiProcess(settings.model_copy(update={"state_store": "memory"}), tmp_path / "api.log") as api:
        api.ready()
        sizes = [_size_after_a_round(changelog, api, number) for number in range(ROUNDS + 2)]

    grown = (sizes[-1] - sizes[1]) / (ROUNDS * (UPDATES + READS))
    assert grown < MOST_BYTES_AN_EVENT, sizes


def _size_after_a_round(changelog: Changelog, api: ApiProcess, number: int) -> int:
    """Bytes of the process once it has applied a round's updates and answered its reads."""
    for step in range(UPDATES):
        sequence = number * UPDATES + step + 1
        changelog.balance(CARDS[step % len(CARDS)], f"{sequence}.00", sequence)
    changelog.flush()
    applied = (number + 1) * UPDATES
    api.wait_until(lambda report: sum(each["applied"] for each in balances_of(report)) == applied)
    for step in range(READS):
        assert api.balance(CARDS[step % len(CARDS)]).is_success
    size: int = psutil.Process(api.pid).memory_info().rss
    return size
