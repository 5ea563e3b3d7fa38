"""The targets for files: programmes, endpoints of webhooks, opening balances and shops."""

import base64
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import typer

from infra.local.folders import ROOT
from schemas import topics
from services.cli.opening_balances import import_commands
from services.cli.programme import _text_of
from services.cli.stores import _shops_of
from services.codecs.events import command_record
from services.errors import SettingsError
from services.messaging.avro import encoder
from services.opening_balances.file import read_files
from services.programmes.file import ProgrammeError, parse_programme
from services.pseudonyms import KEY_BYTES, Pseudonyms
from services.webhooks.endpoints import load
from tests.fuzz.target import DefectError, Feed, FuzzTarget, Outcome
from tests.support.builders import IDS
from tests.support.mutations import ANY_MUTATIONS, JSON_MUTATIONS, Mutation, damaged

_NOW = 1_790_000_000_000
_DOCUMENTS = ROOT / "docs" / "reference"

_PIECES = [
    *(bytes([byte]) for byte in b"\0\t\n\r \"#%&'*,-.:;?@[]{}|!~\x7f\x85\xff"),
    *(b"\r\n", b"- ", b": ", b"{}", b"[]", b"null", b"&a", b"*a", b"!!python/object:os.system", b"<<: "),
    *(b"---\n", b"...\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\\ud800", b"\xed\xa0\x80", b"\xe2\x80\xa8"),
    *(b"P1D", b"PT0S", b"P" + b"9" * 400 + b"D", b"2026-02-30", b"9999-12-31", b"0001-01-01T00:00:00+23:59"),
    *(b"24:00-25:00", b"-1", b"0.005", b"1e999999999", b"9" * 400, b"NaN", b"Infinity", b"[" * 2_000, b"{a: " * 400),
    *(b'"', b'""', b"x" * 300, b"x" * 140_000, b"Europe/../Berlin", b"\xd9\xa0"),
]


def _insert(value: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(value) + 1)
    return value[:place] + rng.choice(_PIECES) + value[place + rng.choice((0, 0, 1, 4)) :]


def _swap_lines(value: bytes, rng: Random) -> bytes:
    lines = value.splitlines(keepends=True)
    if len(lines) > 1:
        lines[rng.randrange(len(lines))] = rng.choice(lines)
    return b"".join(lines)


_MUTATIONS: list[Mutation] = [*ANY_MUTATIONS, _insert, _insert, _swap_lines]


class File(NamedTuple):
    """A file with the suffix of its name."""

    content: bytes
    suffix: str = ""


def _damaged(samples: list[bytes], rng: Random) -> Iterator[File]:
    while True:
        value = rng.choice(samples)
        if rng.random() < 0.3:
            lines = value.splitlines(keepends=True)
            value = b"".join(line for line in lines if rng.random() < 0.6)
        yield File(damaged(value, _MUTATIONS, rng))


def programmes(rng: Random) -> Iterator[File]:
    """The example with fewer lines, and with damage."""
    example = (_DOCUMENTS / "programme-example.yaml").read_bytes()
    least = b"loyalty-factor: 0.02\n"
    campaign = b"campaigns:\n  - {name: a, multiplier: 2, hours: 9:00-10:00, weekdays: [monday]}\n"
    return _damaged(
        [example, least, least + campaign, least + b"tier-period: year\ntiers:\n- {name: a, points: 1}\n"], rng
    )


@contextmanager
def _prepare(use: Callable[[Path], Outcome]) -> Iterator[Feed]:
    """Write each input into a file, and use the file. A command must print why it refuses the file."""
    with TemporaryDirectory(prefix="fuzz-") as folder:
        (Path(folder) / "secret").write_text(f"whsec_{base64.b64encode(bytes(32)).decode()}", encoding="utf-8")

        def feed(given: File) -> Outcome:
            file = Path(folder) / f"file{given.suffix}"
            file.write_bytes(given.content)
            with redirect_stderr(io.StringIO()) as printed:
                try:
                    return use(file)
                except typer.Exit:
                    if not printed.getvalue().startswith("error:"):
                        raise DefectError(f"no error, but {printed.getvalue()!r}") from None
                    return Outcome.REFUSED

        yield feed


def _use_programme(file: Path) -> Outcome:
    text = _text_of(file)
    try:
        parse_programme(text)
    except ProgrammeError as error:
        if not error.problems or not all(0 < each.line <= text.count("\n") + 2 for each in error.problems):
            raise DefectError(f"problems without a line: {error.problems}") from error
        return Outcome.REFUSED
    return Outcome.ACCEPTED


def endpoints(rng: Random) -> Iterator[File]:
    """The example of the documentation, with fewer lines and with damage."""
    document = (_DOCUMENTS / "webhooks.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(endpoints:.*?)```", document, re.DOTALL)
    example = re.sub("secrets/[a-z]*", "secret", example)
    least = "endpoints:\n- {name: crm, url: 'https://crm.example/hooks?a=b', secret-file: secret, timeout: PT2S}\n"
    return _damaged([example.encode(), least.encode()], rng)


def _use_endpoints(file: Path) -> Outcome:
    try:
        load(file)
    except SettingsError as error:
        if not str(error) or "Traceback" in str(error):
            raise DefectError(f"an unclear error: {error}") from error
        return Outcome.REFUSED
    except OSError:  # the file names no secret that can be opened; the process prints the error of the system
        return Outcome.REFUSED
    return Outcome.ACCEPTED


_ROWS = (
    ("4711", "12.50", "2027-12-31"),
    ("4711", "1", ""),
    ("4712", "2.50", "2027-12-31T23:00:00Z"),
    ("\u00e9", "0.01", "9998-12-31"),
    ('A,"B"', "9999999999.99", ""),
)


def balances(rng: Random) -> Iterator[File]:
    """Opening balances as CSV and as JSON Lines, with damage."""
    rows = "".join(f'{{"card":"{card}","points":{points},"expires":"{time}"}}\n' for card, points, time in _ROWS[:4])
    table = "card,points,expires\n" + "".join(f'"{card}",{points},{time}\n' for card, points, time in _ROWS[:4])
    whole = {".csv": table.encode(), ".jsonl": rows.encode()}
    while True:
        suffix = rng.choice([*whole])
        mutations = [*_MUTATIONS, *(JSON_MUTATIONS if suffix == ".jsonl" else ())]
        yield File(damaged(whole[suffix], mutations, rng), suffix)


_encode = encoder(topics.LOYALTY_COMMANDS, IDS)
_NAMES = Pseudonyms(bytes(KEY_BYTES))


def _use_balances(file: Path) -> Outcome:
    found = read_files([file], "Europe/Berlin", _NOW)
    for card, command in import_commands(found, "fuzz", "fuzz", "fuzz", _NAMES):
        card.encode()
        _encode(command_record(card, command))
    if len(found.errors) > found.rows:
        raise DefectError(f"{len(found.errors)} errors of {found.rows} rows")
    return Outcome.REFUSED if found.errors else Outcome.ACCEPTED


def shops(rng: Random) -> Iterator[File]:
    """Shops as JSON Lines, with damage."""
    line = b'{"StoreID": "STR1", "Name": "One", "City": "Gonda", "State": "UP"}\n'
    while True:
        yield File(damaged(line * rng.choice((1, 3)), [*_MUTATIONS, *JSON_MUTATIONS], rng))


_encode_shop = encoder(topics.STORES, IDS)


def _use_shops(file: Path) -> Outcome:
    for shop in _shops_of(file):
        shop["StoreID"].encode()
        _encode_shop(shop)
    return Outcome.ACCEPTED


TARGETS = (
    FuzzTarget("programme-files", programmes, partial(_prepare, _use_programme), chunk=2_000),
    FuzzTarget("webhook-files", endpoints, partial(_prepare, _use_endpoints), chunk=2_000),
    FuzzTarget("import-files", balances, partial(_prepare, _use_balances), chunk=5_000),
    FuzzTarget("shop-files", shops, partial(_prepare, _use_shops), chunk=5_000),
)
