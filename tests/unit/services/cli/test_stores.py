"""`loyalty stores` with wrong input. tests/integration/test_store_queries.py has the other tests."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli import app
from tests.support.kafka import NO_BROKER, NOBODY

GOOD = b'{"StoreID":"S1","Name":"Pune 2","City":"Pune","State":"Maharashtra"}'


def loyalty(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["stores", *arguments], env={"LOYALTY_KAFKA_BOOTSTRAP_SERVERS": NOBODY})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "line 2"),
        (b"\xff", "line 2"),
        pytest.param(b"[" * 200_000, "line 2", id="nested deeply"),
        (GOOD.replace(b"S1", b"S\\ud800"), "line 2: StoreID must be text in UTF-8 that is not empty"),
        (b"[]", "StoreID, Name, City, State must be text"),
        (
            b'{"StoreID":"S2","Name":" ","City":7,"State":"Kerala"}',
            "line 2: Name, City must be text in UTF-8 that is not empty",
        ),
        (GOOD.replace(b"S1", b"S1\\u200b"), "line 2: StoreID has blanks at its start or end"),
        (GOOD.replace(b"S1", b"\\u200b"), "line 2: StoreID must be text in UTF-8 that is not empty"),
        (GOOD.replace(b"S1", b"S" * 129), "line 2: StoreID is longer than 128 characters"),
    ],
)
def test_a_bad_line_is_one_clear_line(tmp_path: Path, line: bytes, says: str) -> None:
    """The exit code is 2, and the error has the file and the line number. No broker is contacted."""
    file = tmp_path / "shops.jsonl"
    file.write_bytes(GOOD + b"\n" + line + b"\n")

    result = loyalty("publish", str(file))

    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert says in result.stderr
    assert str(file) in result.stderr


def test_files_without_shops_are_refused(tmp_path: Path) -> None:
    """A file that is empty by mistake is no success. The exit code is 2, and the error has the name of the file."""
    file = tmp_path / "shops.jsonl"
    file.write_bytes(b"\n")

    result = loyalty("publish", str(file))

    assert (2, f"error: {file}: no shops, so nothing was published: add a shop\n") == (result.exit_code, result.stderr)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    """The exit code is 1, and the error has the name of the file."""
    result = loyalty("publish", str(tmp_path / "nothing"))

    assert (1, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert "nothing" in result.stderr


@pytest.mark.parametrize("command", [["publish"], ["publish", "FILE"], ["remove", "S1"]])
def test_no_broker_is_one_clear_line(command: list[str], tmp_path: Path) -> None:
    """The exit code is 1, and the error names the address."""
    file = tmp_path / "shops.jsonl"
    file.write_bytes(b"\n" + GOOD)

    result = loyalty(*(str(file) if word == "FILE" else word for word in command))

    assert (1, NO_BROKER) == (result.exit_code, result.stderr)
