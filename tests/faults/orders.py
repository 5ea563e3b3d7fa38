"""The oracle for the tests of the checker: linearizability by its definition, without an efficient search."""

import math
from collections.abc import Sequence
from itertools import permutations

from tests.faults.linearizability import Action, Operation, State, Step


def is_explained_by_some_order(history: Sequence[Operation[Action]], initial: State, step: Step[State, Action]) -> bool:
    """Try every order of the answered operations, together with every subset of those without a response."""
    open_ended = [each for each in history if each.end == math.inf]
    answered = [each for each in history if each.end < math.inf]
    for chosen in range(2 ** len(open_ended)):
        taken = [each for number, each in enumerate(open_ended) if chosen >> number & 1]
        for order in permutations([*answered, *taken]):
            state: State | None = initial
            for number, each in enumerate(order):
                state = None if state is None else step(state, each.action)
                if state is None or any(later.end < each.start for later in order[number:]):
                    break
            else:
                return True
    return False
