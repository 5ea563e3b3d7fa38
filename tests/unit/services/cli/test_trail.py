"""What `loyalty trail` shows, on the broker that librdkafka contains for tests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from schemas.topics import AUDIT_TRAIL
from services.audit_trail import audit_record
from services.cli import app
from services.messaging.avro import encoder
from services.pseudonyms import KEY_BYTES, Pseudonyms
from services.settings import Settings
from tests.support.builders import IDS

Trail = Callable[..., Result]


@pytest.fixture
def trail(mocked_broker: tuple[Settings, Producer]) -> Trail:
    """Run the command after these values are appended to the topic."""
    settings, producer = mocked_broker

    def run(*arguments: str, values: list[bytes], **more: str) -> Result:
        for value in values:
            producer.produce(AUDIT_TRAIL.name, value, b"key:1")
        producer.flush(10)
        environment = {"LOYALTY_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers, **more}
        return CliRunner().invoke(app, ["trail", *arguments], env=environment)

    return run


def test_each_record_is_shown_once_and_unreadable_records_are_counted(trail: Trail) -> None:
    """An instance can send a record twice. Everybody who may write to the topic can write a record that is not Avro."""
    records = [audit_record("key:1", action, "200", "http://one") for action in ("first", "second")]
    first, second = (encoder(AUDIT_TRAIL, IDS)(each | {"ActionTime": at}) for at, each in enumerate(records))

    result = trail("--json", values=[first, b"junk", first, second, b"junk"])

    shown = json.loads(result.stdout)
    assert ["first", "second"] == [each["Action"] for each in shown["records"]]
    reason = "not in the Confluent framing: no magic byte 0 and schema id"
    assert {reason: 2} == shown["skipped"]
    assert "skipped 2 records of audit-trail that cannot be decoded" in result.stderr
    assert reason in result.stderr


def test_a_duplicate_takes_no_place_of_a_record_among_the_newest(trail: Trail) -> None:
    records = [audit_record("key:1", action, "200", "http://one") for action in ("oldest", "older", "newest")]
    values = [encoder(AUDIT_TRAIL, IDS)(each | {"ActionTime": at}) for at, each in enumerate(records)]

    result = trail("--json", "--limit", "2", values=[*values, *values])

    assert ["older", "newest"] == [each["Action"] for each in json.loads(result.stdout)["records"]]


def test_the_records_of_a_card_are_found_by_its_pseudonym(trail: Trail, tmp_path: Path) -> None:
    """The command never makes a key, because a new key finds nothing."""
    file = tmp_path / "pseudonym.key"
    arguments = "--card", "4711", "--json"
    refused = trail(*arguments, values=[], LOYALTY_PSEUDONYM_KEY_FILE=str(file))
    assert (2, "", False) == (refused.exit_code, refused.stdout, file.exists())
    assert "pseudonym.key does not exist" in refused.stderr
    assert 2 == trail(*arguments, "--customer", "p1-x", values=[]).exit_code

    file.write_bytes(bytes(KEY_BYTES))
    customers = [Pseudonyms(bytes(KEY_BYTES)).of("4711"), "p1-other"]
    values = [encoder(AUDIT_TRAIL, IDS)(audit_record("key:1", "a", "200", "h", customer=each)) for each in customers]
    shown = json.loads(trail(*arguments, values=values, LOYALTY_PSEUDONYM_KEY_FILE=str(file)).stdout)
    assert customers[:1] == [each["Customer"] for each in shown["records"]]
