"""Regular expressions for JSON that could not be parsed: they find the place and the cause of the mistake.

Repetitions are possessive (*+), so no text makes a pattern try again for a long time.
"""

import re

BEGINS_AS_OBJECT = r"^[ \t\r\n]*\{"
"""No framed Avro value starts like this."""

# One half of a surrogate pair is no character, and UTF-8 cannot encode it.
_HALF = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]"
LONE_SURROGATE = rf"^(?:[^\\]++|{_PAIR}|(?!{_HALF})\\[\s\S])*+{_HALF}"
"""A text up to the first escape of half a pair. It reads escapes from the left, because a backslash before "u" can
itself be escaped.
"""

_BLANKS = r"[ \t\r\n]*+"
_TEXT_BODY = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+'
_TEXT = f'{_TEXT_BODY}"'
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_SCALAR = rf"{_TEXT}|{_NUMBER}|(?:true|false|null)(?![A-Za-z0-9_])"
_NAME = rf"{_TEXT}{_BLANKS}:"
_A_VALUE = r'(?=["\{\[0-9tfn-])'
_PARTS = "|".join(
    (
        rf'\{{{_BLANKS}(?=["}}])',
        rf"\[{_BLANKS}(?:(?=\])|{_A_VALUE})",
        rf"(?:{_NAME}|,){_BLANKS}{_A_VALUE}",
        rf"(?:{_SCALAR}|[\}}\]]){_BLANKS}(?=[,\]\}}]|\Z)",
    )
)
"""The parts of JSON, each with a lookahead for the characters that may follow it."""

READABLE = rf"^{_BLANKS}(?:(?:{_PARTS}){_BLANKS})*+(?:(?:{_NAME}|{_SCALAR}|[\{{\}}\[\],]){_BLANKS}|{_TEXT_BODY})?+"
"""The part of a text before its first mistake. A pattern cannot count nested brackets. So this one finds every mistake
except a bracket or a name that is out of place.
"""

# The end of the value also ends a text. If the pattern needed the last quote, it would try again at each escaped quote
# of a text that is cut off: for minutes in 64 KiB.
ANY_TEXT = r'"(?:[^"\\]++|\\[\s\S])*+(?:"|\\?\Z)'
OPENING, CLOSING = r"[\{\[]", r"[\}\]]"
_OPENING_OR_CLOSING = re.compile(rf"{ANY_TEXT}|({OPENING})|{CLOSING}")

ORDINARY_NAME = r"^[A-Za-z0-9_.\[\] -]{1,64}(?![\s\S])"
"""A name that a reason can repeat in one line."""


def depth(text: str) -> int:
    """Returns how deeply the objects and lists of a text are nested."""
    open_brackets = deepest = 0
    for found in _OPENING_OR_CLOSING.finditer(text):
        if not found[0].startswith('"'):
            open_brackets += 1 if found[1] else -1
            deepest = max(deepest, open_brackets)
    return deepest
