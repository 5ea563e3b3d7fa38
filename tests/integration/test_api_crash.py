"""kill -9 of the API, at any moment: the answers stay the truth, and the work done is not done again."""

import shutil
from pathlib import Path

import pytest

from services.settings import Settings
from tests.support.kafka import BalanceWriter
from tests.support.processes import ApiProcess, balance_partitions

COUNT = 60_000
SAMPLE = [f"CARD{number}" for number in range(0, COUNT, 211)]


@pytest.fixture
def truth(settings: Settings, topics_created: list[str]) -> dict[str, str]:  # noqa: ARG001  # there when it writes
    """A changelog long enough to be killed in; the points of a sample of customers."""
    changelog = BalanceWriter(settings)
    for number in range(COUNT):
        changelog.balance(f"CARD{number}", f"{number}.25", 1)
    changelog.flush()
    return {card: f"{card.removeprefix('CARD')}.25" for card in SAMPLE}


def test_killed_in_the_middle_of_restoring(settings: Settings, truth: dict[str, str], tmp_path: Path) -> None:
    """The next start resumes at the offset that the data on disk stand for, not at 0, and restores the truth."""
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


def test_killed_while_serving(settings: Settings, truth: dict[str, str], tmp_path: Path) -> None:
    """All that was served is there again without a record read twice; what came meanwhile is added."""
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


def test_state_directory_lost(settings: Settings, truth: dict[str, str], tmp_path: Path) -> None:
    """Without its directory an instance restores everything from the changelog."""
    with ApiProcess(settings, tmp_path / "first.log") as first:
        first.wait_until_ready()
        first.kill()
    shutil.rmtree(settings.state_dir)

    with ApiProcess(settings, tmp_path / "second.log") as second:
        report = second.wait_until_ready()

        assert truth == second.points(SAMPLE)
        assert [None] * 3 == [each["resumedFrom"] for each in balance_partitions(report)]
        assert sum(each["applied"] for each in balance_partitions(report)) == COUNT


def test_state_directory_damaged(settings: Settings, truth: dict[str, str], tmp_path: Path) -> None:
    """A damaged store is told, wiped and restored; the others resume."""
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
