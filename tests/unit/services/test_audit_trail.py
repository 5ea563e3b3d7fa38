"""The audit trail: it never delays a request, and an operator acts only with a record."""

import os
import pwd
import threading
import time
from typing import Any

import pytest
from confluent_kafka import Producer
from structlog.testing import capture_logs

from infra.local.ports import free_port
from schemas.topics import AUDIT_TRAIL
from services import audit_trail
from services.audit_trail import AuditTrail, announce, audit_record, audited, details_of, operator, read_trail
from services.messaging.avro import Record, decoder, encoder
from services.messaging.headers import cloud_event
from services.messaging.publishing import Publisher, PublishError
from services.messaging.resending import ResendingProducer
from services.messaging.topic_reader import records_of
from services.settings import Settings
from tests.support.builders import IDS

MINE = audit_record(
    "key:1", "DELETE /v1/customers/{card}", "200", "http://one:8080", customer="p1-x", details={"a": "b"}
)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The records that operators have published. The test plays the broker."""
    published: list[Record] = []
    decode = decoder(AUDIT_TRAIL, IDS)

    def publish(_: object, __: str, ___: bytes, value: bytes, *____: object) -> None:
        published.append(decode(value))

    monkeypatch.setattr(audit_trail, "connected_producer", lambda *_: Producer({}))
    monkeypatch.setattr(Publisher, "publish", publish)
    return published


def test_records_keep_all_fields() -> None:
    """A record is the same after encoding and decoding. Each record has its own id."""
    assert MINE == decoder(AUDIT_TRAIL, IDS)(encoder(AUDIT_TRAIL, IDS)(MINE))
    assert audit_record("a", "b", "c", "d")["EventID"] != audit_record("a", "b", "c", "d")["EventID"]


def test_a_record_that_cannot_be_encoded_does_not_delay_the_others(mocked_broker: tuple[Settings, Producer]) -> None:
    """The record is only in the log, and counts as lost."""
    settings, producer = mocked_broker
    producer.list_topics("audit-trail", timeout=10)  # creates it
    lost: list[None] = []
    trail = AuditTrail(settings, lambda: lost.append(None))
    for actor in ("first", "\ud800", "third"):
        trail.write(audit_record(actor, "b", "c", "d"))
    trail.close()
    assert (["first", "third"], 1) == (sorted(each["Actor"] for each in read_trail(settings)), len(lost))


def test_records_of_instances_and_operators_have_the_headers_of_cloud_events(
    mocked_broker: tuple[Settings, Producer],
) -> None:
    """A reader recognises duplicates by ``ce_id``."""
    settings, producer = mocked_broker
    producer.list_topics("audit-trail", timeout=10)  # creates it
    trail = AuditTrail(settings, lambda: None)
    trail.write(MINE)
    trail.close()
    announce("loyalty rebuild", settings)

    found = list(records_of(settings, "audit-trail", "test"))
    ids = [decoder(AUDIT_TRAIL, IDS)(each.value())["EventID"] for each in found]
    expected = [[(name, text.encode()) for name, text in cloud_event(each, "AuditRecord").items()] for each in ids]
    assert (2, expected) == (len(set(ids)), [each.headers() for each in found])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_each_record_is_reported_if_the_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records that wait and all later records count as lost, so that none vanishes without a report."""
    ready = threading.Event()

    class Broken(ResendingProducer):
        def poll(self, seconds: float) -> None:
            ready.wait()
            if len(self):
                raise OSError("no such file")
            super().poll(seconds)

    monkeypatch.setattr(audit_trail, "ResendingProducer", Broken)
    monkeypatch.setattr(audit_trail, "CLOSE_SECONDS", 0.1)
    lost: list[None] = []
    trail = AuditTrail(Settings(kafka_bootstrap_servers=f"127.0.0.1:{free_port()}"), lambda: lost.append(None))
    for _ in range(3):
        trail.write(MINE)
    ready.set()
    trail.close()
    trail.write(MINE)
    assert 4 == len(lost)


def test_a_request_never_waits_for_kafka_and_each_loss_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a broker, records wait up to the limit. The others are counted as lost, and the log has their ids."""
    monkeypatch.setattr(audit_trail, "MOST_WAITING", 5)
    monkeypatch.setattr(audit_trail, "CLOSE_SECONDS", 0.3)
    asked: list[None] = []
    monkeypatch.setattr(audit_trail, "schema_ids", lambda _: asked.append(None) or IDS)
    lost: list[None] = []
    with capture_logs() as logs:
        trail = AuditTrail(Settings(kafka_bootstrap_servers=f"127.0.0.1:{free_port()}"), lambda: lost.append(None))
        started = time.monotonic()
        records = [audit_record("a", "b", "c", "d") for _ in range(20)]
        for record in records:
            trail.write(record)
        assert time.monotonic() - started < 1
        trail.close()

    assert (20, 1) == (len(lost), len(asked))
    reported = [each["id"] for each in logs if "only in this log" in each["event"]]
    assert sorted(each["EventID"] for each in records) == sorted(reported)


def test_an_operator_is_recorded_before_and_after(noted: list[Record]) -> None:
    """The first record says begun, the second one done or failed. Details that are added meanwhile are in the second
    one.
    """
    with audited("loyalty keys create", Settings(), key="0123") as details:
        assert ["begun"] == [each["Outcome"] for each in noted]
        details["version"] = "7"

    def fail() -> None:
        with audited("loyalty keys revoke", Settings()):
            raise SystemExit(2)

    with pytest.raises(SystemExit):
        fail()
    announce("loyalty rebuild", Settings())

    keys, revocation = "loyalty keys create", "loyalty keys revoke"
    assert [
        (keys, "begun", {"key": "0123"}),
        (keys, "done", {"key": "0123", "version": "7"}),
        (revocation, "begun", {}),
        (revocation, "failed", {}),
        ("loyalty rebuild", "begun", {}),
    ] == [(each["Action"], each["Outcome"], details_of(each)) for each in noted]
    assert all(each["Actor"].startswith("operator:") for each in noted)


@pytest.mark.parametrize("refuses", ["connected_producer", "Publisher.publish"])
def test_an_operator_does_not_act_without_a_record(
    noted: list[Record], monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    """If the trail takes no record, the command does nothing."""

    def fail(*_: object) -> None:
        raise PublishError("no broker")

    monkeypatch.setattr(f"services.audit_trail.{refuses}", fail)
    acted = []
    with pytest.raises(PublishError), audited("loyalty keys create", Settings()):
        acted.append(1)
    assert ([], []) == (acted, noted)


def test_a_command_ends_as_it_would_with_its_second_record(
    noted: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the trail would make the user repeat a command that has succeeded. The log says how it ended."""
    publish = Publisher.publish

    def accept_the_first(*arguments: Any) -> None:
        if noted:
            raise PublishError("a record was not delivered; send all of them again")
        publish(*arguments)

    monkeypatch.setattr(Publisher, "publish", accept_the_first)
    with capture_logs() as lines, audited("loyalty programme publish", Settings()) as details:
        details["version"] = "2"
    noted.clear()
    with capture_logs() as more, pytest.raises(SystemExit), audited("loyalty programme publish", Settings()):
        raise SystemExit(2)

    assert [("done", {"version": "2"}), ("failed", {})] == [(each["outcome"], each["details"]) for each in lines + more]
    assert {(operator(), "a record was not delivered")} == {(each["actor"], each["reason"]) for each in lines + more}


def test_an_operator_cannot_choose_the_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the user may have a number only."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "somebody.else")
    assert f"operator:{pwd.getpwuid(os.getuid()).pw_name}" == operator()

    monkeypatch.setattr("os.getuid", lambda: 1_000_660_000)
    assert "operator:1000660000" == operator()
