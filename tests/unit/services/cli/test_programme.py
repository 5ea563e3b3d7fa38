"""`loyalty programme` without a broker. tests/integration/test_programmes.py has the other tests."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli import app
from services.domain.formats import LAST_TIME
from services.domain.programme import Programme
from services.programmes.topic import Version
from tests.support.kafka import NOBODY

EXAMPLE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "programme-example.yaml"
BAD = "loyalty-factor: much\nrounding: down\ntime-zone: Mars\n"


def loyalty(*arguments: str) -> Result:
    environment = {"LOYALTY_KAFKA_BOOTSTRAP_SERVERS": NOBODY}
    return CliRunner().invoke(app, ["programme", *arguments], env=environment)


def test_a_good_file_is_valid() -> None:
    """The exit code is 0, and the output is one line or one JSON object."""
    assert (0, f"{EXAMPLE}: valid\n") == ((result := loyalty("check", str(EXAMPLE))).exit_code, result.stdout)
    assert {"valid": True, "problems": []} == json.loads(loyalty("check", "--json", str(EXAMPLE)).stdout)


@pytest.mark.parametrize("command", ["check", "publish"])
def test_all_problems_of_a_bad_file_are_listed(command: str, tmp_path: Path) -> None:
    """The exit code is 2. Each problem is one line with the file and the line number. No broker is contacted."""
    file = tmp_path / "bad.yaml"
    file.write_text(BAD, encoding="utf-8")

    result = loyalty(command, str(file))

    assert (2, "") == (result.exit_code, result.stdout)
    assert [
        f"{file}: line 1: loyalty-factor: 'much' is not a decimal number such as 0.02",
        f"{file}: line 3: time-zone: 'Mars' is not a time zone of the package tzdata, such as Asia/Kolkata or UTC",
        f"error: {file} has 2 problems: correct them and try again",
    ] == result.stderr.splitlines()


def test_one_problem_is_named_in_the_singular(tmp_path: Path) -> None:
    """The tutorial shows this line."""
    file = tmp_path / "bad.yaml"
    file.write_text("loyalty-factor: much", encoding="utf-8")

    result = loyalty("check", str(file))

    assert f"error: {file} has 1 problem: correct it and try again" == result.stderr.splitlines()[-1]


def test_problems_are_json_for_scripts(tmp_path: Path) -> None:
    """The JSON has the line, path and message of each problem. The exit code is 2."""
    file = tmp_path / "bad.yaml"
    file.write_text(BAD, encoding="utf-8")

    result = loyalty("check", "--json", str(file))

    assert (2, "") == (result.exit_code, result.stderr)
    found = json.loads(result.stdout)
    assert found["valid"] is False
    assert [(1, "loyalty-factor"), (3, "time-zone")] == [(each["line"], each["path"]) for each in found["problems"]]


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [(None, 1, "No such file"), (b"loyalty-factor: 0.02\n\xff", 2, "line 2 is not UTF-8")],
)
def test_a_file_that_cannot_be_read_is_one_clear_line(
    tmp_path: Path, content: bytes | None, code: int, says: str
) -> None:
    """The error has the name of the file and the reason."""
    file = tmp_path / "programme.yaml"
    if content is not None:
        file.write_bytes(content)

    result = loyalty("check", str(file))

    assert (code, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert f"{file}: {says}" in result.stderr


@pytest.mark.parametrize(
    ("time", "says"), [("tomorrow", "'tomorrow' is not a time"), ("2026-12-01T00:00:00", "has no offset")]
)
def test_a_time_must_be_exact(time: str, says: str) -> None:
    """A time without an offset is refused, because it depends on the machine."""
    result = loyalty("publish", str(EXAMPLE), "--effective-from", time)

    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert says in result.stderr


@pytest.mark.parametrize("arguments", [["--json"], ["--version", "1", "--json"], []])
def test_a_version_after_the_year_9999_is_shown(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An older release can have published it. The command shows the last time that has a text."""
    late = Version(1, LAST_TIME + 18_000_000, 1_500, BAD, Programme())
    monkeypatch.setattr("services.cli.programme.published_versions", lambda _: [late])

    result = loyalty("show", *arguments)

    assert 0 == result.exit_code
    assert "9999-12-31T23:59:59.999Z" in result.stdout
    assert "1970-01-01T00:00:01.500Z" in result.stdout


def test_a_replaced_version_stays_replaced_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions 1 and 2 have the same time in the past, so version 2 has replaced version 1."""
    versions = [
        Version(number, start, 1_500, BAD, Programme()) for number, start in [(1, 2_000), (2, 2_000), (3, 3_000)]
    ]
    monkeypatch.setattr("services.cli.programme.published_versions", lambda _: versions)

    rows = [line.split("│")[1:-1] for line in loyalty("show").stdout.splitlines() if line.startswith("│")]

    assert [("0", ""), ("1", "replaced"), ("2", ""), ("3", "in force")] == [
        (number.strip(), state.strip()) for number, *_, state in rows
    ]
