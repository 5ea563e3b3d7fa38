"""A fault of the harness: the stack that it needs, and one injection into it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tests.faults.environment import Environment
from tests.faults.report import Row

INJECTIONS = 20
"""Injections after which a stack is replaced. An audit reads all topics, so its time grows with each injection."""

Stack = TypeVar("Stack", bound=Environment)
_Option = TypeVar("_Option")


@dataclass(frozen=True)
class Scenario(Generic[Stack]):
    """A fault.

    Attributes:
        inject: injects the fault once into a running stack, and audits. Takes the name of the fault, the stack and a
            seed.
        stack: starts the stack in a directory and stops it at the end. Scenarios with the same function share a stack.
        most: the number of injections into one stack.
        needs_root: whether the stack mounts disks.
    """

    inject: Callable[[str, Stack, int], Row]
    stack: Callable[[Path], AbstractContextManager[Stack]] = Environment  # type: ignore[assignment]
    most: int = INJECTIONS
    needs_root: bool = False


def in_turn(options: Sequence[_Option], seed: int) -> _Option:
    """One of the options, and the next one for the next injection: its seed is larger by one."""
    return options[seed % len(options)]
