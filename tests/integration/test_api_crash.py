"""kill -9 of the API at any moment: its answers stay right, and it resumes from its last checkpoint."""

import shutil
from pathlib import Path

import pytest

from services.settings import Settings
from tests.support.kafka import BalanceWriter
from tests.support.processes import ApiProcess, balance_partitions

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


def test_resumes_after_a_kill_while_it_restores(settings: Settings, truth: dict[str, str], tmp_path: Path) -> None:
    """The next start resumes at the offset of the data on disk, not at 0, and restores the right points."""
    with ApiProcess(settings, tmp_path / "first.log") as first:
        amid = first.wait_until(lambda report: any(0 < each["position"] for each in balance_partitions(report)))
        first.kill()
    assert not amid["ready"]

    with ApiProcess(settings, tmp_path / "second.log") as second:
        report = second.wait_until_ready()

        assert truth == second.points(SAMPLE)
        assert sum(each["entries"] for each in balance_partitions(report)) == COUNT
        for before, after in zip(balance_partitions(amid), balance_partitions(report), strict=True):
            assert (after["resumedFrom"] or 0) >= before["position"]
            assert after["applied"] == after["endOffset"] - (after["resumedFrom"] or 0)
        assert 0 < sum(each["applied"] for each in balance_partitions(report)) < COUNT


def test_resumes_after_a_kill_while_it_serves(settings: Settings, truth: dict[str, str], tmp_path: Path) -> None:
    """A restart reads no record twice and adds the records that arrived meanwhile."""
    with ApiProcess(settings, tmp_path / "first.log") as first:
        ends = [each["endOffset"] for each in balance_partitions(first.wait_until_ready())]
        assert truth == first.points(SAMPLE)
        first.kill()
    changelog = BalanceWriter(settings)
    changelog.balance(SAMPLE[0], "77.77", 2)
    changelog.flush()

    with ApiProcess(settings, tmp_path / "second.log") as second:
        report = second.wait_until_ready()

        assert {**truth, SAMPLE[0]: "77.77"} == second.points(SAMPLE)
        assert ends == [each["resumedFrom"] for each in balance_partitions(report)]
        assert sum(each["applied"] for each in balance_partitions(report)) == 1


def test_restores_a_lost_state_directory(settings: Settings, truth: dict[str, str], tmp_path: Path) -> None:
    """An instance without its state directory restores everything from the changelog."""
    with ApiProcess(settings, tmp_path / "first.log") as first:
        first.wait_until_ready()
        first.kill()
    shutil.rmtree(settings.state_dir)

    with ApiProcess(settings, tmp_path / "second.log") as second:
        report = second.wait_until_ready()

        assert truth == second.points(SAMPLE)
        assert [None] * 3 == [each["resumedFrom"] for each in balance_partitions(report)]
        assert sum(each["applied"] for each in balance_partitions(report)) == COUNT


def test_restores_a_damaged_state_directory(settings: Settings, truth: dict[str, str], tmp_path: Path) -> None:
    """An instance reports a damaged store, deletes it and restores it. Its other stores resume."""
    with ApiProcess(settings, tmp_path / "first.log") as first:
        first.wait_until_ready()
        assert first.terminate() == 0
    (settings.state_dir / "customer-balances" / "1" / "CURRENT").write_bytes(b"damaged\n")

    with ApiProcess(settings, tmp_path / "second.log") as second:
        report = second.wait_until_ready()

        assert truth == second.points(SAMPLE)
        rebuilt = [each["partition"] for each in balance_partitions(report) if each["rebuiltBecause"]]
        assert rebuilt == [1]
        assert balance_partitions(report)[1]["resumedFrom"] is None
        assert balance_partitions(report)[0]["resumedFrom"] == balance_partitions(report)[0]["endOffset"]
