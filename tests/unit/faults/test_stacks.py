"""Injections share a stack."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.report import Row
from tests.faults.scenario import Scenario, in_turn
from tests.faults.stacks import Stacks


def inject(name: str, *_: object) -> Row:
    return Row(name, 1, 0, 0, 0)


def test_faults_share_a_stack_until_it_has_had_enough_injections() -> None:
    running: list[tuple[str, Path]] = []
    names: list[str] = []

    def starts(name: str) -> Any:
        @contextmanager
        def start(directory: Path) -> Iterator[Any]:
            assert not running, "the former stack has ended"
            running.append((name, directory))
            yield object()
            running.clear()

        return start

    ordinary, special = starts("ordinary"), starts("special")
    kill, pause = Scenario(inject, ordinary, most=3), Scenario(inject, ordinary, most=3)
    fill = Scenario(inject, special, most=3)
    used, directories = [], set()
    with Stacks() as stacks:
        for scenario in (kill, kill, pause, pause, fill, fill, kill):
            used.append(stacks.stack_for(scenario))
            ((name, directory),) = running
            names.append(name)
            directories.add(directory)
        stacks.discard()
        assert not running
        used.append(stacks.stack_for(kill))

    assert ["ordinary"] * 4 + ["special"] * 2 + ["ordinary"] == names
    assert [0, 0, 0, 1, 2, 2, 3, 4] == [list(dict.fromkeys(map(id, used))).index(id(each)) for each in used]
    assert not any(directory.exists() for directory in directories)


def test_seeds_in_sequence_take_each_option() -> None:
    assert ["b", "c", "a"] == [in_turn("abc", seed) for seed in (1, 2, 3)]
