"""Decides whether a history of one object is linearizable.

A history is linearizable if every operation could have taken effect at one moment between its request and its response
(Herlihy and Wing, "Linearizability: a correctness condition for concurrent objects", 1990). The search is that of Wing
and Gong with the cache of Lowe ("Testing for linearizability", 2017). The checker porcupine uses the same search.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Action = TypeVar("Action")
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Operation(Generic[Action]):
    """An operation of one client.

    Attributes:
        action: the request and the response, in the form of the model.
        start: the time of the request, in seconds of one monotonic clock. The operation takes effect at this time or
            later.
        end: the time of the response. Infinity if there was none: the operation took effect at any later time, or
            never.
    """

    action: Action
    start: float
    end: float = math.inf


Step = Callable[[State, Action], State | None]
"""The model: returns the state after an action, or None if the action is impossible in this state."""


def first_impossible(
    history: Sequence[Operation[Action]],
    initial: State,
    step: Step[State, Action],
    is_read: Callable[[Action], bool] = lambda _: False,
) -> Operation[Action] | None:
    """Search an order of the operations that agrees with all times and with the model.

    Args:
        initial: the state before the first operation. States are hashable.
        is_read: whether an action never changes a state. The search takes a possible read at once, because to take it
            later allows no other orders. Otherwise it would try all subsets of the reads of a wrong history.

    Returns:
        None if there is such an order. Otherwise the operation at which the longest attempt ended.
    """
    operations = sorted(history, key=lambda each: each.start)
    required = sum(1 << number for number, each in enumerate(operations) if each.end < math.inf)
    tried: set[tuple[int, State]] = set()
    longest, failed = -1, None
    # An element of the path is a state, the set of operations before it as bits, and the choices that are left.
    reads = [is_read(each.action) for each in operations]
    path = [(initial, 0, _choices(operations, reads, 0))]
    nothing: Iterator[int] = iter(())
    while path:
        state, done, choices = path[-1]
        if required & ~done == 0:
            return None
        for number in choices:
            after = step(state, operations[number].action)
            if after is not None and (key := (done | 1 << number, after)) not in tried:
                tried.add(key)
                if reads[number]:
                    path[-1] = (state, done, nothing)
                path.append((after, key[0], _choices(operations, reads, key[0])))
                break
        else:
            if len(path) > longest:
                longest, failed = len(path), _next_to_end(operations, required & ~done)
            path.pop()
    return failed


def _choices(operations: Sequence[Operation[Action]], reads: Sequence[bool], done: int) -> Iterator[int]:
    """The operations that can be next: those that started before the end of all other remaining ones. Reads first."""
    first_end = math.inf
    candidates = []
    first = (~done & (done + 1)).bit_length() - 1
    for number in range(first, len(operations)):
        if done >> number & 1:
            continue
        operation = operations[number]
        if operation.start > first_end:
            break
        first_end = min(first_end, operation.end)
        candidates.append(number)
    possible = [number for number in candidates if operations[number].start <= first_end]
    return iter(sorted(possible, key=lambda number: not reads[number]))


def _next_to_end(operations: Sequence[Operation[Action]], left: int) -> Operation[Action]:
    """The operation with the earliest end. ``left`` is the set of operations, as bits."""
    return min((each for number, each in enumerate(operations) if left >> number & 1), key=lambda each: each.end)
