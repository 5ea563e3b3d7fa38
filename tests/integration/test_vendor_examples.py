"""The examples for vendors of tills run exactly as the page shows them, and the pipeline accepts their records."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import schemas
from schemas import topics
from services.cli import app
from services.messaging.avro import encoder
from services.settings import Settings
from services.verdicts import judge_of_invoices
from tests.support.builders import IDS
from tests.support.kafka import read_all
from tests.support.vendors import Vendor, blocks, need

OLD = "CreatedTime is more than an hour behind the broker's clock: is the till's clock or its time zone wrong?"


@pytest.fixture
def vendor(settings: Settings, topics_created: list[str], tmp_path: Path) -> Vendor:  # noqa: ARG001
    folder = tmp_path / "vendor"
    folder.mkdir()
    return Vendor(folder, settings.kafka_bootstrap_servers, settings.name_of(topics.POS_INVOICES))


@pytest.mark.parametrize("tool", ["kcat", "Python", "Java"])
def test_every_example_publishes_the_invoice(vendor: Vendor, settings: Settings, tool: str) -> None:
    """JSON and Avro arrive with the right key and partition, and the Avro value has exactly the bytes of the page."""
    need(tool)
    for command in blocks(tool):
        vendor.runs(command)

    invoice = json.loads((vendor.folder / "invoice.json").read_text(encoding="utf-8"))
    arrived = read_all(settings, topics.POS_INVOICES)
    complete = {name: invoice.get(name) for name in schemas.field_names("PosInvoice")}
    complete["InvoiceLineItems"] = [{**line, "ItemDescription": None} for line in invoice["InvoiceLineItems"]]
    check = judge_of_invoices(IDS.known(topics.POS_INVOICES))
    verdicts = [check(message.value(), message.key())[:3] for message in arrived]
    assert [b"STR7"] * 2 == [message.key() for message in arrived]
    assert [(None, complete, None), (None, complete, IDS.writer_id(topics.POS_INVOICES))] == verdicts
    assert encoder(topics.POS_INVOICES, IDS)(invoice) == arrived[1].value()

    (command,) = blocks("Check what arrived")[:1]
    environment = {
        "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "LOYALTY_TOPIC_PREFIX": settings.topic_prefix,
    }
    shown = CliRunner().invoke(app, [*command.split()[1:], "--json"], env=environment)
    assert 0 == shown.exit_code, shown.output
    report = json.loads(shown.stdout)
    first, second = (f"{message.partition()}:{message.offset()}" for message in arrived)
    assert (2, 0) == (report["accepted"], report["refused"])
    assert {OLD: 2, f"another invoice at {first} has the same InvoiceNumber, so this one is ignored": 1} == report[
        "warnings"
    ]
    assert [first, second] == [each["place"] for each in report["findings"]]


def test_the_page_has_the_bytes_of_its_invoice(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the Avro value of the invoice in the page. Each file of the page is accepted."""
    need("kcat")
    vendor.runs(blocks("kcat")[1].splitlines()[0])
    invoice = json.loads((vendor.folder / "invoice.json").read_text(encoding="utf-8"))
    assert encoder(topics.POS_INVOICES, IDS)(invoice) == (vendor.folder / "invoice.avro").read_bytes()

    monkeypatch.chdir(vendor.folder)
    for line in blocks("Check what arrived")[1].splitlines():
        assert 0 == CliRunner().invoke(app, line.split()[1:]).exit_code
