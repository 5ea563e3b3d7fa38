"""A fuzz target: a place where input from outside enters the system, and the generator of inputs for it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any


class Outcome(StrEnum):
    """What the system did with an input. Anything else is a crash or a hang.

    Attributes:
        ACCEPTED: the input was valid and took effect, or got its response.
        REFUSED: the answer was an error that says what is wrong.
        SET_ASIDE: the input became a dead letter, or was skipped, counted and logged.
    """

    ACCEPTED = "accepted"
    REFUSED = "refused"
    SET_ASIDE = "set aside"


class DefectError(AssertionError):
    """The system did something wrong. The message says what."""


Feed = Callable[[Any], Outcome]
"""Feeds one input to the system. Any error that it raises is a crash."""


@dataclass(frozen=True)
class FuzzTarget:
    """One fuzz target.

    Attributes:
        name: the name in the report.
        inputs: an endless iterator of inputs. They depend only on the random numbers.
        prepare: prepares the system once for many inputs.
        chunk: the number of inputs from one seed.
        share: the share of the wanted number of inputs that this target gets. A slow target has a small share.
    """

    name: str
    inputs: Callable[[Random], Iterator[Any]]
    prepare: Callable[[], AbstractContextManager[Feed]]
    chunk: int = 10_000
    share: float = 1.0
