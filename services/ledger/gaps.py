"""Which sequences of an account are missing."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Gap(NamedTuple):
    """Missing sequences, both ends included."""

    first: int
    last: int


def track(last: int, gaps: Sequence[Gap], appended: Iterable[int]) -> tuple[int, list[Gap]]:
    """The highest sequence and the gaps below it, after these sequences have been appended in any order."""
    missing = list(gaps)
    for sequence in sorted(set(appended)):
        if sequence > last:
            if sequence > last + 1:
                missing.append(Gap(last + 1, sequence - 1))
            last = sequence
        elif missing:
            missing = [rest for gap in missing for rest in _without(gap, sequence)]
    return last, missing


def _without(gap: Gap, sequence: int) -> Iterator[Gap]:
    if not gap.first <= sequence <= gap.last:
        yield gap
        return
    if gap.first < sequence:
        yield Gap(gap.first, sequence - 1)
    if sequence < gap.last:
        yield Gap(sequence + 1, gap.last)
