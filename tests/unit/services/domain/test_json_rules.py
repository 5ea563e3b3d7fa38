"""The patterns that find the place of a mistake in JSON."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import schemas
from services.domain.json_patterns import READABLE
from services.domain.json_rules import NOT_ONE_OBJECT, NotReadableError, mistake, read_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
LONGEST_WORD = len("false")
"""Python may stop behind a word, while the pattern stops before a word that goes on."""
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=3)


def readable(text: str) -> int:
    found = re.match(READABLE, text)
    assert found
    return found.end()


def place_of_error(text: str) -> int | None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos
    return None


@given(OBJECTS, st.sampled_from([None, 1]), st.booleans())
def test_json_has_no_mistake(value: dict[str, object], indent: int | None, ascii_only: bool) -> None:  # noqa: FBT001
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)

    assert len(text) == readable(text)


@given(OBJECTS, st.integers(min_value=0), st.sampled_from(["'", "NaN", "\x01", "+", "01", "tru", "}{", ",,"]))
def test_a_mistake_is_at_the_place_where_python_stops(value: dict[str, object], where: int, wrong: str) -> None:
    """Only misplaced brackets and names have no place."""
    text = json.dumps(value)
    where %= len(text)
    text = text[:where] + wrong + text[where:]
    stop = place_of_error(text)

    assert stop is None or readable(text) == len(text) or abs(readable(text) - stop) <= LONGEST_WORD


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a":NaN}', 5),
        ("{'a':1}", 1),
        ('{"a":1,}', 7),
        ('{"a" 1}', 5),
        ('{"a":"x\ny"}', 7),
        ('{"a":"\\q"}', 6),
        ('{"a":01}', 6),
        ('{"a":1.}', 6),
        ('{"a":tru}', 5),
        ('{"a":1,,"b":2}', 7),
        ('{"a":1 "b":2}', 7),
        ('{"a":1} {"b":2}', 8),
        ('{"a":1}x', 7),
        ('{"a":[1 2]}', 8),
        ('{"a":{"b":', 10),
        ('{"a":"x', 7),
        ("{", 1),
    ],
)
def test_the_place_of_a_mistake(text: str, place: int) -> None:
    assert place == readable(text)


@pytest.mark.parametrize("brackets", ["", "[" * 1_000])
def test_a_text_that_is_cut_off_costs_no_quadratic_time(brackets: str) -> None:
    """64 KiB of JSON inside a text, without its end, once took 26 seconds. A megabyte would take hours."""
    text = '{"Payload": "' + r"{\"a\":1}," * 100_000 + brackets

    assert f"not JSON: the text ends before the object does, at line 1, column {len(text) + 1}" == mistake(text)
    with pytest.raises(NotReadableError, match="the text ends before the object does"):
        read_object(text.encode(), schemas.current("PosInvoice"))


def test_a_value_can_be_nested_999_levels_deep() -> None:
    """Brackets inside of texts do not count as levels, and a text does not allow more levels."""

    def nested(levels: int) -> bytes:
        return b'{"Tip": ' + b'["{[", ' * (levels - 1) + b"1" + b"]" * (levels - 1) + b"}"

    assert read_object(nested(999), schemas.current("PosInvoice"))
    with pytest.raises(NotReadableError, match=re.escape(NOT_ONE_OBJECT)):
        read_object(nested(1_000), schemas.current("PosInvoice"))
