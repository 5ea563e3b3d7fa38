"""A fault: the stack that it needs, and how to inject it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tests.faults.environment import Environment
from tests.faults.report import Row

INJECTIONS = 20
"""After this number of injections a new stack starts, because audits read all topics and become slower."""

Stack = TypeVar("Stack", bound=Environment)
_Option = TypeVar("_Option")


@dataclass(frozen=True)
class Scenario(Generic[Stack]):
    """A fault.

    Attributes:
        inject: injects the fault once into a running stack, and audits the result. Takes the name of the fault, the
            stack and a seed.
        stack: starts the stack in a directory and stops it at the end. Scenarios with the same function share a stack.
        most: the largest number of injections into one stack.
        needs_root: whether the stack mounts disks, which only root can do.
    """

    inject: Callable[[str, Stack, int], Row]
    stack: Callable[[Path], AbstractContextManager[Stack]] = Environment  # type: ignore[assignment]
    most: int = INJECTIONS
    needs_root: bool = False


def in_turn(options: Sequence[_Option], seed: int) -> _Option:
    """One of the options. The next injection, whose seed is larger by one, gets the next option."""
    return options[seed % len(options)]
