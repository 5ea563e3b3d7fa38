"""Values of pos-invoices, some of them damaged: cut, with flipped bits, repeated, or with odd values."""

import io
import json
import re
from collections.abc import Callable, Iterator
from itertools import cycle
from random import Random
from typing import Any

import fastavro

import schemas
from schemas import topics
from services.messaging.avro import header
from services.pos_simulator.simulation import Options, Simulation
from tests.support.builders import IDS
from tests.support.strategies import FLAWS, flawed

_TOKENS = [
    *(bytes([byte]) for byte in b'{}[]":,\\ \t\n\r\x00\x1f-+.0e/u'),
    *(
        b"null",
        b"true",
        b"NaN",
        b'\\"',
        b"\\u0041",
        b"\\ud83d\\ude00",
        b"\\ud800",
        b"\xc3\xa9",
        b"\xff",
        b"\xed\xa0\x80",
    ),
]
_ODD_JSON = [
    *('""', '" "', '"\\u00a0"', '"é"', '"\\t"', "null", "true", "false", "[]", "{}", "[null]", "[{}]", '{"City": 7}'),
    *("0", "-0", "-1", "00", "1.0", "1.5", "1e2", "1E-2", "1e400", "-1e400", "5e-324", "1.", ".5", "+1", "0x10"),
    *("2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "1595688900", "1e999999999"),
    *("9" * 38, "9" * 39, "9" * 1001, "0." + "1" * 40, "99999999999.99", "100000000000", "1" * 19 + ".0", "[" * 40),
]
_ODD_AVRO = [
    *(
        bytes.fromhex(each)
        for each in ("00", "01", "02", "03", "04", "7f", "80", "ff", "8000", "80808000", "8280808000")
    ),
    *(b"\x80" * size + b"\x01" for size in (4, 5, 9, 10)),
    *(b"\xff" * size + b"\x0f" for size in (3, 4, 5, 8, 9)),
    b"\x00\x00\x00\x00\x00\x00\xf8\x7f",
]
_SCALAR = re.compile(rb'(?<=: )(?:"[^"]*"|[^ ,\[\]{}]+)')

Mutation = Callable[[bytes, Random], bytes]


def damaged_invoices(count: int, seed: int) -> list[bytes]:
    """Distinct values, about half of them JSON and half Avro in all known schemas. Some are not damaged."""
    found: dict[bytes, None] = {}
    for value in endless_damaged_invoices(Random(seed), seed):
        found[value] = None
        if len(found) == count:
            break
    return [*found]


def endless_damaged_invoices(rng: Random, seed: int) -> Iterator[bytes]:
    """An endless sequence of such values. Some of them are equal."""
    invoices = [*_invoices(seed)]
    for write, mutations in cycle([(_as_json, JSON_MUTATIONS), (_as_avro, AVRO_MUTATIONS)]):
        yield damaged(write(rng.choice(invoices), rng), mutations, rng)


def damaged(value: bytes, mutations: list[Mutation], rng: Random) -> bytes:
    """The value with up to three mutations."""
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        value = rng.choice(mutations)(value, rng)
    return value


def _invoices(seed: int) -> Iterator[dict[str, Any]]:
    """Simulated invoices, and copies of them with a field that a validation rule refuses."""
    simulated = Simulation(Options(count=40, seed=seed, broken=0)).messages()
    for number, message in enumerate(simulated):
        invoice: dict[str, Any] = {**(message.invoice or {})}
        yield invoice
        flaws: list[Any] = FLAWS[number : len(FLAWS) - 1 : 40]  # the last is megabytes long
        yield from (flawed(invoice, flaw) for flaw in flaws)


def _as_json(invoice: dict[str, Any], rng: Random) -> bytes:
    return json.dumps(invoice, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 1))).encode()


def _as_avro(invoice: dict[str, Any], rng: Random) -> bytes:
    schema_id = rng.choice([*IDS.known(topics.POS_INVOICES)])
    schema = json.loads(schemas.schema_text(schemas.ids()[schema_id]))
    body = io.BytesIO()
    complete = {field["name"]: _present(field["type"], invoice.get(field["name"])) for field in schema["fields"]}
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), complete)
    return header(schema_id) + body.getvalue()


def _present(of: Any, value: Any) -> Any:
    """The value, or instead of None a default for a field that cannot be null in an old schema."""
    return (
        {"string": "", "double": 0.0, "int": 0, "long": 0}.get(of, value)
        if value is None and isinstance(of, str)
        else value
    )


def _place(value: bytes, rng: Random) -> int:
    return rng.randrange(len(value) + 1)


def _cut(value: bytes, rng: Random) -> bytes:
    return value[: _place(value, rng)]


def _flip(value: bytes, rng: Random) -> bytes:
    if not value:
        return value
    place = rng.randrange(len(value))
    return value[:place] + bytes([value[place] ^ 1 << rng.randrange(8)]) + value[place + 1 :]


def _remove(value: bytes, rng: Random) -> bytes:
    place = _place(value, rng)
    return value[:place] + value[place + rng.choice((1, 1, 2, 5, 30)) :]


def _repeat(value: bytes, rng: Random) -> bytes:
    start, end = sorted((_place(value, rng), _place(value, rng)))
    return value[:end] + value[start:]


def _insert(tokens: list[bytes]) -> Mutation:
    def insert(value: bytes, rng: Random) -> bytes:
        place = _place(value, rng)
        return value[:place] + rng.choice(tokens) + value[place + rng.randrange(2) :]

    return insert


def _odd_value(value: bytes, rng: Random) -> bytes:
    """Replace the value of a field of a JSON object with an odd value."""
    if not (found := [*_SCALAR.finditer(value)]):
        return value
    match = rng.choice(found)
    return value[: match.start()] + rng.choice(_ODD_JSON).encode() + value[match.end() :]


def _other_name(value: bytes, rng: Random) -> bytes:
    """Give a field the name of another field. The name then occurs twice, or its value has the wrong type."""
    names = [*re.finditer(rb'"\w+"(?=: )', value)]
    if not names:
        return value
    match, other = rng.choice(names), rng.choice(names)
    return value[: match.start()] + other[0] + value[match.end() :]


def _wrapped(value: bytes, rng: Random) -> bytes:
    before, after = rng.choice(
        [(b"[", b"]"), (b" \n", b" "), (b"", b"\n{}"), (b"", b',{"end":"here"}'), (b"\xef\xbb\xbf", b""), (b"", b"]")]
    )
    return before + value + after


def _other_schema(value: bytes, rng: Random) -> bytes:
    return header(rng.choice([*IDS.known(topics.POS_INVOICES), 7, 4_000_000_000])) + value[5:]


ANY_MUTATIONS: list[Mutation] = [_cut, _flip, _flip, _remove, _repeat]
JSON_MUTATIONS: list[Mutation] = [
    *ANY_MUTATIONS,
    _insert(_TOKENS),
    _insert(_TOKENS),
    _odd_value,
    _odd_value,
    _other_name,
    _wrapped,
]
AVRO_MUTATIONS: list[Mutation] = [*ANY_MUTATIONS, _insert(_ODD_AVRO), _insert(_ODD_AVRO), _other_schema]
