"""The reasons of texts that are no JSON, and the limits of JSON."""

import pytest

import schemas
from services.domain.json_rules import NotReadableError, read_object


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{'a':1}", 1),
        ('{"a" 1}', 5),
        ('{"a":"x\ny"}', 7),
        ('{"a":"\\q"}', 6),
        ('{"a":01}', 6),
        ('{"a":1.}', 6),
        ('{"a":tru}', 5),
        ('{"a":1}]', 7),
        ('{"a":1]', 6),
        ('{"a":1, 2}', 8),
        ('{"a":"\\u12"}', 7),
        ('{"a":1,,"b":2}', 7),
        ('{"a":1 "b":2}', 7),
        ('{"a":1} {"b":2}', 8),
        ('{"a":1}x', 7),
        ('{"a":[1 2]}', 8),
    ],
)
def test_the_place_of_a_mistake(text: str, place: int) -> None:
    assert f"not JSON: the mistake is at line 2, column {place + 1}" == reason("\n" + text)


@pytest.mark.parametrize(
    "text", ["{", '{"a', '{"a" ', '{"a":', '{"a":1', '{"a":"x', '{"a":"\\', '{"a":{"b":', '{"a":[1, ', '{"a":{}\n']
)
def test_a_text_that_is_cut_off(text: str) -> None:
    assert f"not JSON: the text ends before the object does, after {len(text)} characters" == reason(text)


@pytest.mark.parametrize("brackets", ["", "[" * 1_000])
def test_a_text_that_is_cut_off_costs_no_quadratic_time(brackets: str) -> None:
    """64 KiB of JSON inside a text, without its end, once took 26 seconds. A megabyte would take hours."""
    text = '{"Payload": "' + r"{\"a\":1}," * 100_000 + brackets

    assert f"not JSON: the text ends before the object does, after {len(text):,} characters" == reason(text)


def reason(text: str) -> str:
    with pytest.raises(NotReadableError) as raised:
        read_object(text.encode(), schemas.current("PosInvoice"))
    return str(raised.value)


def test_a_value_can_be_nested_999_levels_deep() -> None:
    """Brackets inside of texts do not count as levels, and a text does not allow more levels."""

    def nested(levels: int) -> bytes:
        return b'{"Tip": ' + b'["{[", ' * (levels - 1) + b"1" + b"]" * (levels - 1) + b"}"

    assert read_object(nested(999), schemas.current("PosInvoice"))
    with pytest.raises(NotReadableError, match="nested more than 999 levels deep"):
        read_object(nested(1_000), schemas.current("PosInvoice"))


@pytest.mark.parametrize(
    ("last", "first_refused", "says"),
    [
        ('"CreatedTime": -9223372036854775808', '"CreatedTime": -9223372036854775809', "CreatedTime is out of range"),
        ('"InvoiceNumber": ' + "9" * 38, '"InvoiceNumber": ' + "9" * 39, "or more than 38 digits, and must be a text"),
        ('"TotalAmount": -0.' + "9" * 999, '"TotalAmount": -0.' + "9" * 1_000, "a number has more than 1,000 digits"),
        (f'"{"n" * 50_000}": 1', f'"{"n" * 50_001}": 1', "a name has more than 50,000 characters"),
    ],
    ids=["time", "whole number", "digits", "name"],
)
def test_the_largest_numbers_and_names_are_read(last: str, first_refused: str, says: str) -> None:
    """Release 0.1 read them with Jackson, which has these limits."""
    assert read_object(f"{{{last}}}".encode(), schemas.current("PosInvoice"))
    assert says in reason(f"{{{first_refused}}}")
