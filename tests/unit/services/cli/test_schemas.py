"""`loyalty schemas check` finds incompatible schemas before they are used."""

import json

import pytest
from typer.testing import CliRunner

import schemas
from services.cli import app

RUNNER = CliRunner()


def draft(tmp_path, name, change):
    """A file with a changed schema."""
    schema = schemas.current(name)
    change({field["name"]: field for field in schema["fields"]}, schema["fields"])
    file = tmp_path / f"{name}.avsc"
    file.write_text(json.dumps(schema))
    return str(file)


def check(*arguments):
    return RUNNER.invoke(app, ["schemas", "check", *arguments], env={"COLUMNS": "1000"})


def test_the_schemas_of_this_release_are_compatible():
    """All present schemas are compatible with all schemas that have an id."""
    result = check("--json")
    assert ({"compatible": True, "problems": []}, 0) == (json.loads(result.stdout), result.exit_code)


def test_a_field_with_a_default_may_be_added(tmp_path):
    """A new field with a default is compatible."""
    file = draft(
        tmp_path, "PosInvoice", lambda _, all_: all_.append({"name": "X", "type": ["null", "int"], "default": None})
    )
    assert 0 == check(file).exit_code


def test_a_file_in_another_encoding_is_named(tmp_path):
    """The error says what to do."""
    file = tmp_path / "PosInvoice.avsc"
    file.write_bytes(b'{"doc": "\xe9"}')
    result = check(str(file))
    assert (2, True) == (result.exit_code, "is not UTF-8 text (byte 9): save it as UTF-8" in result.stderr)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda _, all_: all_.append({"name": "X", "type": "int"}),
            (
                "PosInvoice.avsc cannot read what id 9 (PosInvoice.avsc) has written: "
                "X is missing, and the reader has no default"
            ),
        ),
        (
            lambda by_name, _: by_name["NumberOfItems"].update(type=["null", "long"]),
            "cannot be read by id 9 (PosInvoice.avsc): NumberOfItems is long, but the reader needs null or int",
        ),
        (
            lambda by_name, _: by_name["TotalAmount"].update(type=["null", "string"]),
            "PosInvoice.avsc cannot be read by id 2 (history/PosInvoice-2.avsc): TotalAmount is string",
        ),
    ],
)
def test_a_schema_that_readers_cannot_read_is_refused(tmp_path, change, line):
    """The exit status is 1, and one line names the schema, the id, the field and the reason."""
    result = check(draft(tmp_path, "PosInvoice", change))

    assert 1 == result.exit_code
    assert line in result.stdout


def test_a_scale_may_not_change(tmp_path):
    """Another scale of points is refused: equal bytes would be another number."""
    file = draft(tmp_path, "Balance", lambda by_name, _: by_name["TotalLoyaltyPoints"]["type"].update(scale=3))
    result = check(file, "--json")

    assert 1 == result.exit_code
    assert any("TotalLoyaltyPoints" in each for each in json.loads(result.stdout)["problems"])


def test_a_file_that_is_no_schema_is_refused(tmp_path):
    """A file that is not Avro is a problem. A file of an unknown record is a wrong argument."""
    broken = tmp_path / "Balance.avsc"
    broken.write_text('{"type": "no such type"}')
    assert (1, True) == ((result := check(str(broken))).exit_code, "is not an Avro schema" in result.stdout)
    unknown = tmp_path / "Coupon.avsc"
    unknown.write_text("{}")
    assert 2 == check(str(unknown)).exit_code


def test_files_of_the_same_name_are_all_checked(tmp_path):
    """Each problem names the path of its file. The line for files without problems names all paths."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    wrong = draft(tmp_path / "a", "Balance", lambda _, all_: all_.append({"name": "X", "type": "int"}))
    good = draft(tmp_path / "b", "Balance", lambda *_: None)

    result = check(wrong, good, "--json")

    problems = json.loads(result.stdout)["problems"]
    assert (1, {wrong}) == (result.exit_code, {problem.split()[0] for problem in problems})
    assert f"{good}, {good}: compatible in both directions with all earlier schemas\n" == check(good, good).stdout
