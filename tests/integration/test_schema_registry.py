"""Apicurio Registry as the Schema Registry: ids, changed schemas, an outage and the recovery after it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

import schemas
from schemas import topics
from services.cli import app
from services.messaging import schema_registry
from services.messaging.avro import decoder, encoder
from services.messaging.schema_ids import SchemaRegistryUnavailableError, UnknownSchemaIdError, schema_ids
from services.settings import Settings
from services.verdicts import judge_of_invoices
from tests.faults.schema_change import CHANGES, INCOMPATIBLE, WIDENED, written
from tests.support.builders import invoice
from tests.support.kafka import BalanceWriter, publish, read_all
from tests.support.processes import ApiProcess
from tests.support.vendors import Vendor, blocks, need

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.registry import ApicurioRegistry

UNREGISTERED = 2_000_000_000


@pytest.fixture
def settings(settings: Settings, registry: "ApicurioRegistry") -> Settings:
    """The subjects have the topic prefix, so each test has its own."""
    return settings.model_copy(update={"schema_registry_url": registry.url})


def subject_of(settings: Settings, topic: topics.Topic) -> str:
    return f"{settings.name_of(topic)}-value"


def loyalty(settings: Settings, *arguments: str | Path) -> Result:
    environment = {
        "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "LOYALTY_TOPIC_PREFIX": settings.topic_prefix,
        "LOYALTY_SCHEMA_REGISTRY_URL": settings.schema_registry_url,
    }
    return CliRunner().invoke(app, [*map(str, arguments)], env=environment)


def test_all_processes_get_the_same_ids(
    settings: Settings, registry: "ApicurioRegistry", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry gives each topic one id for its schema, and returns the schema unchanged."""
    for topic in topics.ALL:
        if not topic.value:
            continue
        name = topic.value
        schema_id = schema_ids(settings).writer_id(topic)
        other = schema_ids(settings)
        assert schema_id == other.writer_id(topic)
        assert [schema_id] == list(other.known(topic)) == registry.versions(subject_of(settings, topic))
        assert schemas.current(name) == json.loads(schema_ids(settings).writer_schema(schema_id))
    monkeypatch.setattr(schema_registry, "LOADING_SECONDS", 0.1)  # this registry has loaded its schemas
    with pytest.raises(UnknownSchemaIdError, match=str(UNREGISTERED)):
        schema_ids(settings).writer_schema(UNREGISTERED)


def test_a_draft_is_checked_before_it_is_registered(
    settings: Settings, registry: "ApicurioRegistry", tmp_path: Path
) -> None:
    """The check registers nothing. A subject without a schema accepts every schema."""
    draft = tmp_path / "PosInvoice.avsc"
    draft.write_text(json.dumps(INCOMPATIBLE), encoding="utf-8")
    ids = schema_ids(settings)
    assert "refused by the Schema Registry" not in loyalty(settings, "schemas", "check", draft).stdout
    schema_id = ids.writer_id(topics.POS_INVOICES)

    refused = loyalty(settings, "schemas", "check", draft)

    assert 1 == refused.exit_code
    assert "PosInvoice.avsc is refused by the Schema Registry for pos-invoices" in refused.stdout
    assert [schema_id] == registry.versions(subject_of(settings, topics.POS_INVOICES))
    assert 0 == loyalty(settings, "schemas", "check", "schemas/PosInvoice.avsc").exit_code


def test_invoices_of_compatible_writers_are_accepted(
    spark: "SparkSession", settings: Settings, registry: "ApicurioRegistry"
) -> None:
    """The pipeline and the conformance check refuse the others with the same reason."""
    from pipelines.columns.decoding import check_invoices
    from tests.spark.test_parity import as_records

    subject = subject_of(settings, topics.POS_INVOICES)
    current = schema_ids(settings).writer_id(topics.POS_INVOICES)
    # The narrower schema is an older one, so the registry does not compare it.
    given = {name: registry.register(subject, schema, forced=name == WIDENED) for name, schema in CHANGES.items()}
    assert registry.register(subject, INCOMPATIBLE) is None
    wrong = registry.register(subject, INCOMPATIBLE, forced=True)
    writers = [
        *((CHANGES[name], schema_id, None) for name, schema_id in given.items()),
        (schemas.current("PosInvoice"), current, None),
        (INCOMPATIBLE, wrong, "not an Avro PosInvoice of its schema id"),
        (schemas.current("PosInvoice"), UNREGISTERED, f"unknown schema id {UNREGISTERED}"),
    ]
    expected = {
        value: reason for schema, schema_id, reason in writers for _, value in written(schema, int(schema_id or 0), 7)
    }
    ids = schema_ids(settings)

    rows = check_invoices(as_records(spark, expected), ids).orderBy("offset").collect()

    assert [*expected.values()] == [row.reason for row in rows]
    check = judge_of_invoices(ids.known(topics.POS_INVOICES))
    assert expected == {value: check(value, None).reason for value in expected}


@pytest.mark.usefixtures("topics_created")
def test_an_outage_loses_nothing(settings: Settings, registry: "ApicurioRegistry", tmp_path: Path) -> None:
    """Without the registry nothing is written or skipped. After the outage, ids are the same and readers continue."""
    ids = schema_ids(settings)
    running = decoder(topics.POS_INVOICES, ids)
    value = encoder(topics.POS_INVOICES, ids)(invoice("1"))
    publish(settings, topics.POS_INVOICES, [(b"STR1", value)])
    changelog = BalanceWriter(settings)
    changelog.balance("CARD1", "1.00", 1)
    changelog.flush()
    known = [schema_ids(settings).writer_id(topic) for topic in (topics.POS_INVOICES, topics.LOYALTY_BALANCES)]
    record = running(value)

    registry.process.kill()
    try:
        assert record == running(value), "a reader that knows the id needs no registry"
        with pytest.raises(SchemaRegistryUnavailableError, match="did not return the schema of id"):
            decoder(topics.POS_INVOICES, schema_ids(settings))(value)
        for command in (["simulate", "--count", "5"], ["conformance"], ["schemas", "check", "schemas/PosInvoice.avsc"]):
            failed = loyalty(settings, *command)
            assert (1, "") == (failed.exit_code, failed.stdout)
            assert failed.stderr.startswith("error: the Schema Registry did not ")
            assert 1 == failed.stderr.count("\n")
        assert [value] == [message.value() for message in read_all(settings, topics.POS_INVOICES)]
        with ApiProcess(settings, tmp_path / "api.log") as api:
            api.wait_until(lambda report: any(each["lag"] for each in report["partitions"]))
            registry.start()
            api.wait_until_ready()
            assert {"CARD1": "1.00"} == api.points(["CARD1"])
    finally:
        if registry.process.pid is None:
            registry.start()

    fresh = schema_ids(settings)
    assert known == [fresh.writer_id(topic) for topic in (topics.POS_INVOICES, topics.LOYALTY_BALANCES)]
    assert record == decoder(topics.POS_INVOICES, fresh)(value)
    assert 0 == loyalty(settings, "simulate", "--count", "5", "--broken", "0", "--repeats", "0").exit_code
    report = json.loads(loyalty(settings, "conformance", "--json").stdout)
    assert (6, 0) == (report["accepted"], report["refused"])


@pytest.mark.usefixtures("topics_created")
def test_a_vendor_asks_for_the_id(settings: Settings, tmp_path: Path) -> None:
    """The command of docs/how-to/publish-invoices.md gives the id with which the pipeline reads the invoice."""
    need("curl")
    ids = schema_ids(settings)
    schema_id = ids.writer_id(topics.POS_INVOICES)
    vendor = Vendor(tmp_path, settings.kafka_bootstrap_servers, settings.name_of(topics.POS_INVOICES))
    vendor.environment["REGISTRY"] = str(settings.schema_registry_url)
    (ask,), (publish_both,) = blocks("With a Schema Registry"), blocks("Python")

    vendor.runs(ask + publish_both.splitlines()[1])

    (message,) = read_all(settings, topics.POS_INVOICES)
    check = judge_of_invoices(ids.known(topics.POS_INVOICES))
    assert (None, schema_id) == check(message.value(), None)[::2]
