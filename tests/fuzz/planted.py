"""Fuzz targets with planted defects. The tests of the runner prove that it finds them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from tests.fuzz.target import Feed, FuzzTarget, Outcome

_TEN_MIB = 10 * 2**20
_LEAK: list[bytearray] = []


def _inputs(rng: Random) -> Iterator[bool]:
    while True:
        yield rng.random() < 0.5


def _target(name: str, harm: Callable[[], None]) -> FuzzTarget:
    @contextmanager
    def prepare() -> Iterator[Feed]:
        def feed(is_harmful: bool) -> Outcome:  # noqa: FBT001 - the input
            if is_harmful:
                harm()
            return Outcome.ACCEPTED

        yield feed

    return FuzzTarget(name, _inputs, prepare)


def dying() -> FuzzTarget:
    """Ends the process."""
    return _target("dying", lambda: os._exit(1))


def growing() -> FuzzTarget:
    """Keeps memory."""
    return _target("growing", lambda: _LEAK.append(bytearray(_TEN_MIB)))
