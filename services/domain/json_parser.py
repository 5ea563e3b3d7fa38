"""Parses JSON with the limits of Jackson. Python's parser reads the text, and numbers keep their text."""

import json
import re
import sys
from collections import Counter
from typing import Any, NoReturn

DEEPEST = 1000
"""The largest depth of nested objects and lists."""

_LONGEST_NUMBER = 1000
_LONGEST_NAME = 50_000

# The end of the value also ends a text. If the pattern needed the last quote, it would try again at each escaped quote
# of a text that is cut off: for minutes in 64 KiB.
_TEXT_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\[\s\S])*+(?:"|\\?\Z)|([\{\[])|[\}\]]')


class Number(str):
    """The text of a number, unchanged."""

    __slots__ = ()


class _UniqueObject(dict[str, Any]):
    """An object in which each name occurs once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) < len(pairs):
            name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            # Any other name may be data, such as a card, or too long for a reason.
            field = f"the field {name}" if re.fullmatch("[A-Za-z_]{1,64}", name) else "a field"
            raise ValueError(f"{field} is given twice")
        if any(len(name) > _LONGEST_NAME for name in self):
            raise ValueError(f"a name has more than {_LONGEST_NAME:,} characters")


def _number(text: str) -> Number:
    if len(text) > _LONGEST_NUMBER and sum(map(str.isdigit, text)) > _LONGEST_NUMBER:
        raise ValueError(f"a number has more than {_LONGEST_NUMBER:,} digits")
    return Number(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name} is no JSON value")


DECODER = json.JSONDecoder(
    object_pairs_hook=_UniqueObject, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant
)
"""It raises ValueError for what Jackson refuses. It does not check how deeply a value is nested."""


def parse(text: str, deepest: int) -> Any:
    """Returns the JSON value of a text. Raises ValueError, also if it is nested more deeply than ``deepest``."""
    # The first condition is fast. It is false for almost every value.
    if text.count("{") + text.count("[") > deepest and depth(text) > deepest:
        raise ValueError(f"objects and lists are nested more than {deepest:,} levels deep")
    before = sys.getrecursionlimit()
    # Python's parser counts each level as a call.
    sys.setrecursionlimit(max(before, 3 * DEEPEST))
    try:
        return DECODER.decode(text)
    finally:
        sys.setrecursionlimit(before)


def depth(text: str) -> int:
    """Returns how deeply the objects and lists of a text are nested."""
    open_brackets = deepest = 0
    for found in _TEXT_OR_BRACKET.finditer(text):
        if not found[0].startswith('"'):
            open_brackets += 1 if found[1] else -1
            deepest = max(deepest, open_brackets)
    return deepest
