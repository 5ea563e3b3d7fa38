"""A door: a place where input of others enters the system, with the inputs that are tried there."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any


class Outcome(StrEnum):
    """What the system did with an input. Each other end is a crash or a hang.

    Attributes:
        ACCEPTED: it was valid and took effect, or got its response.
        REFUSED: it was answered with an error that says what is wrong.
        SET_ASIDE: it became a dead letter, or was skipped, counted and logged.
    """

    ACCEPTED = "accepted"
    REFUSED = "refused"
    SET_ASIDE = "set aside"


class DefectError(AssertionError):
    """The system did something that it must not do. The message says what."""


Enter = Callable[[Any], Outcome]
"""Gives one input to the system. Each error that it raises is a crash."""


@dataclass(frozen=True)
class Door:
    """One door.

    Attributes:
        name: the name in the report.
        inputs: an endless iterator of inputs that follow from the random numbers alone.
        opened: prepares the system once for many inputs.
        chunk: the number of inputs that one seed gives.
        share: how many inputs it gets for each one of the other doors, because an input takes longer.
    """

    name: str
    inputs: Callable[[Random], Iterator[Any]]
    opened: Callable[[], AbstractContextManager[Enter]]
    chunk: int = 10_000
    share: float = 1.0
