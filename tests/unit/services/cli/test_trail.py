"""What `loyalty trail` shows, on the broker that librdkafka contains for tests."""

import json
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from schemas.topics import AUDIT_TRAIL
from services.audit_trail import audit_record
from services.cli import app
from services.messaging.avro import encoder
from services.settings import Settings
from tests.support.builders import IDS

Trail = Callable[..., Result]


@pytest.fixture
def trail(mocked_broker: tuple[Settings, Producer]) -> Trail:
    """Run the command after these values are appended to the topic."""
    settings, producer = mocked_broker

    def run(*arguments: str, values: list[bytes]) -> Result:
        for value in values:
            producer.produce(AUDIT_TRAIL.name, value, b"key:1")
        producer.flush(10)
        environment = {"LOYALTY_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers}
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
