"""Routes of audits and programmes, of the caller and of the settings, and the audit trail."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from api import operations
from api.operations import Operations
from infra.local.ports import HOST, free_port
from pipelines.reconciliation.report import CustomerDifference, Report
from services.api_keys.keys import Scope
from services.audit_trail import details_of
from services.programmes.file import parse_programme
from services.programmes.topic import UncertainPublicationError, Version
from services.settings import Settings
from tests.support.builders import problem_type
from tests.support.secured import SecuredGroup, bearer
from tests.unit.api.operators.played_kafka import Kafka


def test_the_newest_runs_of_the_audit_are_shown(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response has the content of the record AuditRun. A card becomes a pseudonym."""
    found = [CustomerDifference("CARD", "ledger", "entry 2 (reserved 0.00) is missing")]
    report = Report(3, 12, 1, {"ledger": 11}, found, ["the ledger does not answer"], ["CARD"], ["before noon"])
    monkeypatch.setattr(operations.runs, "read_runs", lambda _: [report.run(1_000, lambda _: "p1-x"), {}])
    (run,) = client.get("/v1/audits", params={"limit": 1}).json()["runs"]
    assert {
        "startedTime": "1970-01-01T00:00:01.000Z",
        "outcome": "differs",
        "accounts": 3,
        "entries": 12,
        "notRecomputed": 1,
        "compared": {"ledger": 11},
        "differences": 1,
        "findings": [{"customer": "p1-x", "place": "ledger", "difference": "entry 2 (reserved 0.00) is missing"}],
        "unreadable": ["the ledger does not answer", "customer p1-x changes faster than it can be compared"],
        "notes": ["before noon"],
    }.items() <= run.items()
    assert "CARD" not in str(run)


def test_a_schema_registry_that_does_not_answer_is_a_problem(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance asks for the schema of a run that was written with another one."""
    run = SimpleNamespace(value=lambda: b"\0" + bytes.fromhex("0000ffff") + b"run")
    monkeypatch.setattr("services.messaging.topic_reader.records_of", lambda *_: [run])
    client.app.state.dependencies.operations = Operations(  # type: ignore[attr-defined]
        Settings(schema_registry_url=f"http://{HOST}:{free_port()}")
    )
    answer = client.get("/v1/audits")
    assert "broker-unavailable" == problem_type(answer, 503)
    assert "the Schema Registry" in answer.json()["detail"]


def test_a_programme_is_checked_and_published(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each problem has its line. A publication names the version and its times."""
    published: list[tuple[str, int | None]] = []

    def publish(text: str, _: Settings, effective_time: int | None) -> Version:
        rules = parse_programme(text)
        published.append((text, effective_time))
        return Version(3, effective_time or 5_000, 1_000, text, rules)

    monkeypatch.setattr(operations, "publish_programme", publish)
    good, bad = "loyalty-factor: 0.05\n", "loyalty-factor: x\n"
    assert {"valid": True, "problems": []} == client.post("/v1/programmes/check", json={"programme": good}).json()
    found = client.post("/v1/programmes/check", json={"programme": bad}).json()
    assert (False, 1) == (found["valid"], found["problems"][0]["line"])
    refused = client.post("/v1/programmes", json={"programme": bad})
    assert ("invalid-programme", 1) == (problem_type(refused, 422), refused.json()["problems"][0]["line"])
    for text in ("tomorrow", "2026-12-01T00:00:00"):
        answer = client.post("/v1/programmes", json={"programme": good, "effectiveFrom": text})
        assert "invalid-parameters" == problem_type(answer, 422)
    assert [] == published
    answer = client.post("/v1/programmes", json={"programme": good, "effectiveFrom": "1970-01-01T00:00:09+00:00"})
    assert (201, 3) == (answer.status_code, answer.json()["version"])
    assert "1970-01-01T00:00:09.000Z" == answer.json()["effectiveTime"]
    assert [(good, 9_000)] == published


def test_a_version_that_kafka_may_have_is_not_published_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A problem with Retry-After says: repeat the request. That could publish the same version twice."""

    def publish(*_: object) -> Version:
        raise UncertainPublicationError("version 3 is committed, but readers do not get it")

    monkeypatch.setattr(operations, "publish_programme", publish)
    answer = client.post("/v1/programmes", json={"programme": "loyalty-factor: 0.05\n"})
    assert "publication-uncertain" == problem_type(answer, 503)
    assert "retry-after" not in answer.headers
    assert "version 3 is committed, but readers do not get it. Look whether" in answer.json()["detail"]


def test_the_audit_trail_says_what_was_replayed_and_published(
    kafka: Kafka,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A dry run is marked. A check of a programme changes nothing, so it has no record."""
    monkeypatch.setattr(
        operations, "publish_programme", lambda text, *_: Version(3, 5_000, 1_000, text, parse_programme(text))
    )
    secured = SecuredGroup(tmp_path)
    instance = secured.instance()
    instance.app.state.dependencies.operations = Operations(Settings())
    positions, programme = {"positions": ["0:2", "0:0"]}, {"programme": "loyalty-factor: 0.05\n"}
    with TestClient(instance.app, headers=bearer(secured.key(*Scope).text)) as client:
        for path, body in (
            ("dead-letters/replay", positions | {"dryRun": True}),
            ("dead-letters/replay", positions | {"older": True}),
            ("dead-letters/replay", {"positions": ["0:9"]}),
            ("programmes/check", programme),
            ("programmes", programme),
        ):
            client.post(f"/v1/{path}", json=body)
    replay = "POST /v1/dead-letters/replay"
    assert [
        (replay, "200", {"positions": "0:0 0:2", "dryRun": "true", "older": "false"}),
        (replay, "200", {"positions": "0:0 0:2", "dryRun": "false", "older": "true"}),
        (replay, "404", {"positions": "0:9", "dryRun": "false", "older": "false"}),
        ("POST /v1/programmes", "201", {"version": "3"}),
    ] == [(each["Action"], each["Outcome"], details_of(each)) for each in secured.trail.records]


def test_the_caller_and_the_settings_are_shown(client: TestClient) -> None:
    assert {"name": "", "scopes": sorted(Scope), "card": None, "stores": None} == client.get("/v1/caller").json()
    shown = client.get("/v1/settings").json()
    assert ("127.0.0.1", "postgresql://loyalty:…@db/loyalty") == (shown["api_host"], shown["ledger_url"])
