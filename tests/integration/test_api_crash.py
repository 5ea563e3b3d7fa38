"""kill -9 of the API at any moment: its answers stay right, and it resumes from its last checkpoint."""

from pathlib import Path
from typing import Any

import pytest

from services.settings import Settings
from tests.support.kafka import BalanceWriter
from tests.support.processes import ApiProcess, balance_partitions
from tests.support.waiting import POLL_SECONDS

COUNT = 60_000
SAMPLE = [f"CARD{number}" for number in range(0, COUNT, 211)]


@pytest.fixture
def truth(settings: Settings, topics_created: list[str]) -> dict[str, str]:  # noqa: ARG001  # creates the topics first
    """Write a changelog that takes long enough to restore. Returns the points of sampled customers."""
    changelog = BalanceWriter(settings)
    for number in range(COUNT):
        changelog.balance(f"CARD{number}", f"{number}.25", 1)
    changelog.flush()
    return {card: f"{card.removeprefix('CARD')}.25" for card in SAMPLE}


def test_an_instance_resumes_after_kills_and_restores_what_is_lost(
    settings: Settings, truth: dict[str, str], tmp_path: Path
) -> None:
    """All instances use the same state directory, one after the other. Each step says what its instance finds."""
    amid = killed_while_it_restores(settings, tmp_path / "first.log")
    ends = resumes_and_is_killed_while_it_serves(settings, truth, amid, tmp_path / "second.log")
    changelog = BalanceWriter(settings)
    changelog.balance(SAMPLE[0], "77.77", 2)
    changelog.flush()
    truth[SAMPLE[0]] = "77.77"
    reads_only_the_new_record(settings, truth, ends, tmp_path / "third.log")
    (settings.state_dir / "customer-balances" / "1" / "CURRENT").write_bytes(b"damaged\n")
    restores_the_damaged_store_only(settings, truth, tmp_path / "fourth.log")


def killed_while_it_restores(settings: Settings, log: Path) -> list[dict[str, Any]]:
    """Returns the partitions before the kill."""
    with ApiProcess(settings, log) as api:
        report = api.wait_until(
            lambda report: any(0 < each["position"] for each in balance_partitions(report)), POLL_SECONDS
        )
        api.kill()
    assert not report["ready"]
    return balance_partitions(report)


def resumes_and_is_killed_while_it_serves(
    settings: Settings, truth: dict[str, str], amid: list[dict[str, Any]], log: Path
) -> list[int]:
    """It resumes at the offset of the data on disk, not at 0, and restores the right points. Returns the ends."""
    with ApiProcess(settings, log) as api:
        partitions = balance_partitions(api.wait_until_ready())
        assert truth == api.points(SAMPLE)
        api.kill()
    assert sum(each["entries"] for each in partitions) == COUNT
    for before, after in zip(amid, partitions, strict=True):
        assert (after["resumedFrom"] or 0) >= before["position"]
        assert (after["applied"], 0) == (after["endOffset"] - (after["resumedFrom"] or 0), after["ignored"])
    assert 0 < sum(each["applied"] for each in partitions) < COUNT
    return [each["endOffset"] for each in partitions]


def reads_only_the_new_record(settings: Settings, truth: dict[str, str], ends: list[int], log: Path) -> None:
    """It reads no record twice, and adds the record that arrived meanwhile."""
    with ApiProcess(settings, log) as api:
        partitions = balance_partitions(api.wait_until_ready())
        assert truth == api.points(SAMPLE)
        assert 0 == api.terminate()
    assert ends == [each["resumedFrom"] for each in partitions]
    assert (1, 0) == tuple(sum(each[count] for each in partitions) for count in ("applied", "ignored"))


def restores_the_damaged_store_only(settings: Settings, truth: dict[str, str], log: Path) -> None:
    """It reports the damaged store, deletes it and restores it. Its other stores resume."""
    with ApiProcess(settings, log) as api:
        partitions = api.wait_until_ready()["partitions"]
        assert truth == api.points(SAMPLE)
        api.kill()
    (rebuilt,) = (each for each in partitions if each["rebuiltBecause"])
    assert ("customer-balances", 1, None) == (rebuilt["store"], rebuilt["partition"], rebuilt["resumedFrom"])
    assert [rebuilt] == [each for each in partitions if each["resumedFrom"] != each["endOffset"]]
