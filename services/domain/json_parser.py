"""Parses JSON with the limits of Jackson. Python's parser reads the text, and numbers keep their text."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from services.domain.json_patterns import depth

WHITE_SPACE = " \t\r\n"
"""The characters that JSON allows between its parts."""

DEEPEST = 1000
"""The largest depth of nested objects and lists."""

_LONGEST_NUMBER = 1000
_LONGEST_NAME = 50_000


class Number(str):
    """The text of a number, unchanged."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """The names and values of an object. A name can occur twice."""


class UniqueObject(dict[str, Any]):
    """An object in which each name occurs once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) < len(pairs) or any(len(name) > _LONGEST_NAME for name in self):
            raise ValueError("a name is given twice, or is too long")


def decoder(objects: type[Pairs] | type[UniqueObject]) -> json.JSONDecoder:
    """Returns a parser that makes objects of this type. It raises ValueError for what Jackson refuses."""
    return json.JSONDecoder(
        object_pairs_hook=objects, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant
    )


def _number(text: str) -> Number:
    if len(text) > _LONGEST_NUMBER and sum(map(str.isdigit, text)) > _LONGEST_NUMBER:
        raise ValueError("too many digits")
    return Number(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def parse(text: str, deepest: int) -> Any:
    """Returns the JSON object of a text. Raises ValueError, also if it is nested more deeply than ``deepest``."""
    # The first condition is fast. It is false for almost every value.
    if text.count("{") + text.count("[") > deepest and depth(text) > deepest:
        raise ValueError("nested too deeply")
    with enough_recursion():
        return decoder(UniqueObject).decode(text)


@contextmanager
def enough_recursion() -> Iterator[None]:
    """Lets Python's parser read values that are nested as deeply as Jackson allows. It counts each level as a call."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 3 * DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
