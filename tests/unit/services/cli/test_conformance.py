"""`loyalty conformance` with files and stdin. tests/integration/test_vendor_examples.py has topics."""

import json
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from schemas.topics import POS_INVOICES
from services.cli import app
from services.messaging.avro import encoder
from tests.support.builders import IDS, invoice
from tests.support.kafka import NO_BROKER, NOBODY

GOOD = json.dumps(invoice("1")).encode()
BAD = b'{"InvoiceNumber": "2", "StoreID": "STR2", "PosID": "P2"}'
LATE = json.dumps(invoice("3", CreatedTime=None)).encode()


def conformance(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["conformance", *map(str, arguments)], input=stdin)


def test_the_report_has_the_place_and_reason_of_each_refused_line(tmp_path: Path) -> None:
    """The exit status is 1."""
    file = tmp_path / "day.jsonl"
    file.write_bytes(b"\n".join([GOOD, b"", BAD, b"12", LATE]))

    result = conformance(file, "--json")

    assert 1 == result.exit_code
    report = json.loads(result.stdout)
    assert (4, 2, 2) == (report["records"], report["accepted"], report["refused"])
    assert {"TotalAmount is missing": 1, "a whole number in JSON, and must be one JSON object": 1} == report["reasons"]
    assert {"has no CreatedTime: campaigns use the time of the broker": 2} | {
        "has no InvoiceLineItems: analysts get no rows, and returns of items cannot be checked": 1
    } == report["warnings"]
    assert [f"{file}:3", f"{file}:4", f"{file}:5"] == [each["place"] for each in report["findings"]]


def test_warnings_fail_only_if_asked() -> None:
    assert 0 == conformance("-", stdin=LATE).exit_code
    assert 1 == conformance("-", "--strict", stdin=LATE).exit_code
    assert 0 == conformance("-", "--strict", stdin=GOOD).exit_code


def test_the_table_names_records_and_counts() -> None:
    shown = conformance("-", stdin=GOOD + b"\n" + BAD).stdout
    assert "-:2" in shown
    assert "TotalAmount is missing" in shown
    assert "2 records: 1 accepted, 1 refused, 2 warnings" in shown


def test_only_records_of_the_store_or_till_are_checked() -> None:
    lines = GOOD + b"\n" + BAD
    assert 0 == conformance("-", "--store", "STR1", stdin=lines).exit_code
    assert 1 == json.loads(conformance("-", "--till", "P2", "--json", stdin=lines).stdout)["refused"]


def test_the_limit_shows_less_and_counts_all() -> None:
    report = json.loads(conformance("-", "--limit", "1", "--json", stdin=BAD + b"\n" + BAD).stdout)
    assert (2, 1) == (report["refused"], len(report["findings"]))
    assert "1 of 2 records: --limit shows more" in conformance("-", "--limit", "1", stdin=BAD + b"\n" + BAD).stdout
    assert "--limit" not in conformance("-", stdin=BAD + b"\n" + BAD).stdout


def test_values_with_their_lengths_are_read(tmp_path: Path) -> None:
    """Files of kcat hold Avro values, nulls and empty values, each behind its length."""
    avro = encoder(POS_INVOICES, IDS)(invoice("1"))
    file = tmp_path / "values.bin"
    file.write_bytes(struct.pack(">i", len(avro)) + avro + struct.pack(">ii", -1, 0))
    report = json.loads(conformance("--as", "lengths", file, "--json").stdout)
    assert (1, {"no value": 1, "an empty value": 1}) == (report["accepted"], report["reasons"])

    file.write_bytes(struct.pack(">i", len(avro)) + avro[:-1])
    cut = conformance("--as", "lengths", file)
    assert 1 == cut.exit_code
    assert "values.bin#1: no value of" in cut.stderr
    file.write_bytes(b"\x00")
    assert "the file ends within a length" in conformance("--as", "lengths", file).stderr


def test_a_file_can_be_one_value(tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_bytes(json.dumps(invoice(), indent=2).encode())
    assert 0 == conformance("--as", "value", file).exit_code


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("-", "--hours", "1"), 2, "remove --hours or the files"),
        (("nothing.jsonl",), 1, "nothing.jsonl: No such file"),
    ],
)
def test_wrong_arguments_have_a_status_and_a_reason(arguments: tuple[str, ...], status: int, message: str) -> None:
    result = conformance(*arguments)
    assert status == result.exit_code
    assert message in result.stderr


@pytest.mark.parametrize("options", [(), ("--hours", "inf")])
def test_without_a_broker_the_error_names_the_address(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With infinitely many hours, the command reads all records."""
    monkeypatch.setenv("LOYALTY_KAFKA_BOOTSTRAP_SERVERS", NOBODY)
    assert NO_BROKER == conformance(*options).stderr
