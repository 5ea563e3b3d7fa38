"""Doors with planted defects. The tests of the runner show that it finds them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from tests.fuzz.door import Door, Enter, Outcome

_TEN_MIB = 10 * 2**20
_LEAK: list[bytearray] = []


def _inputs(rng: Random) -> Iterator[bool]:
    while True:
        yield rng.random() < 0.5


def _door(name: str, harm: Callable[[], None]) -> Door:
    @contextmanager
    def opened() -> Iterator[Enter]:
        def enter(is_harmful: bool) -> Outcome:  # noqa: FBT001 - the input
            if is_harmful:
                harm()
            return Outcome.ACCEPTED

        yield enter

    return Door(name, _inputs, opened)


def dying() -> Door:
    """Ends the process."""
    return _door("dying", lambda: os._exit(1))


def growing() -> Door:
    """Keeps memory."""
    return _door("growing", lambda: _LEAK.append(bytearray(_TEN_MIB)))
