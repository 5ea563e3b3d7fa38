"""The first inputs of each target of ``make fuzz``: each is answered or set aside, and a defect would be found."""

import json
import time
from random import Random

import pytest

from tests.fuzz import planted, report, stack
from tests.fuzz.runner import Chunk, process_for, run_chunk, run_inputs, save
from tests.fuzz.target import Outcome
from tests.fuzz.targets import TARGETS, target_named
from tests.support.examples import examples

SLOW_TARGETS = {
    "http-sockets": 50,
    "http-requests": 200,
    "programme-files": 150,
    "webhook-files": 100,
    "import-files": 200,
    "shop-files": 200,
}
"""The number of inputs of targets that need milliseconds for each."""

QUICK_TARGETS = sorted({*TARGETS} - {"http-schemathesis", "processes"})
"""An input of the others needs seconds. Other tests use Schemathesis."""


@pytest.mark.parametrize("name", QUICK_TARGETS)
def test_each_input_is_answered_or_set_aside(name: str) -> None:
    count = examples(SLOW_TARGETS.get(name, 1_000))
    chunk = run_chunk(target_named(name), 0, count)
    assert [] == chunk.failures
    assert count == chunk.outcomes.total()
    if count >= 100:
        # Inputs of one outcome only would try little.
        assert 0.1 < chunk.outcomes[Outcome.ACCEPTED] / count < 0.9


def test_a_chunk_has_the_same_inputs_each_time() -> None:
    for target in TARGETS.values():
        first, again = (target.inputs(Random("x")) for _ in range(2))
        assert [repr(next(first)) for _ in range(20)] == [repr(next(again)) for _ in range(20)]


def crash(given: int) -> Outcome:
    if given == 3:
        raise SystemExit(3)
    if given == 5:
        raise KeyError("planted")
    return Outcome.SET_ASIDE


def test_an_error_is_a_crash_that_names_its_input() -> None:
    chunk = run_inputs(iter(range(8)), crash)
    assert {"crash": 2, "set aside": 6} == chunk.outcomes
    first, second = chunk.failures
    assert first.startswith("input 3: 3\n")
    assert "KeyError: 'planted'" in second


def test_an_endless_input_is_a_hang_even_if_the_code_catches_every_error() -> None:
    def feed(given: int) -> Outcome:
        try:
            while given == 1:
                pass
        except Exception:  # noqa: BLE001 - as a careless handler does
            return Outcome.ACCEPTED
        return Outcome.REFUSED

    chunk = run_inputs(iter(range(3)), feed, hang_seconds=0.05)
    assert {"hang": 1, "refused": 2} == chunk.outcomes


def test_the_end_of_a_process_is_a_crash_and_the_next_chunk_runs() -> None:
    with process_for(planted.dying) as work:
        assert [{"crash": 1}, {}] == [work(0, 100).outcomes, work(1, 0).outcomes]


def test_memory_that_grows_is_seen() -> None:
    with process_for(planted.growing) as work:
        first, second = work(0, 1).rss, work(1, 40).rss
    assert first is not None
    assert second is not None
    assert second - first > 90 * 2**20


def test_the_report_adds_chunks_and_begins_anew_with_another_commit(tmp_path) -> None:
    path = tmp_path / "fuzz.json"
    row = report.row_of("kafka", "c1", path)
    chunk = run_inputs(iter(range(8)), crash)
    for _ in range(2):
        row = row.after(chunk, 8, grown=5)
        report.write(row, path)
    report.write(report.Row("http", "c1"), path)

    found = report.row_of("kafka", "c1", path)
    assert (16, 4, 0, 12, 0, 5) == (
        *(found.inputs, found.crashes, found.hangs),
        *(found.set_aside, found.answered, found.rss_growth),
    )
    assert ["kafka", "http"] == [each["target"] for each in json.loads(path.read_text())]
    assert report.Row("kafka", "c2") == report.row_of("kafka", "c2", path)


def test_the_document_has_a_row_for_each_target() -> None:
    lines = report.DOCUMENT.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    assert {*TARGETS, *stack.NAMES} <= {*rows}


def test_failures_are_saved_with_their_inputs(tmp_path) -> None:
    save(tmp_path / "new", "kafka", 7, Chunk())
    assert [] == [*tmp_path.iterdir()]
    save(tmp_path / "new", "kafka", 7, run_inputs(iter(range(8)), crash))
    assert "input 5: 5" in (tmp_path / "new" / "kafka-7.txt").read_text(encoding="utf-8")


def test_time_is_measured() -> None:
    started = time.perf_counter()
    chunk = run_inputs(iter(range(2)), lambda _: Outcome.ACCEPTED)
    assert 0 < chunk.slowest_seconds <= chunk.seconds <= time.perf_counter() - started
