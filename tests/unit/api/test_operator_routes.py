"""The routes for operators. The test plays Kafka behind ``api.operations``."""

import asyncio
import time
import tracemalloc
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Semaphore
from types import SimpleNamespace
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import orjson
import pytest
from fastapi.testclient import TestClient

from api import operations
from api.console.own_api import COOKIE
from api.http import problems
from api.operations import Operations
from infra.local.ports import HOST, free_port
from pipelines.reconciliation.report import CustomerDifference, Report
from schemas import topics
from schemas.access import SERVICES
from services.api_keys.keys import Scope
from services.audit_trail import details_of
from services.messaging import replaying
from services.messaging.dead_letters import DeadLetter, DeadLetterFilter, DeadLettersError, RecordPosition
from services.programmes.file import parse_programme
from services.programmes.topic import UncertainPublicationError, Version
from services.settings import Settings
from services.status_figures import Lag, Part, QueryWork, Status
from tests.support.builders import problem_type
from tests.support.clusters import Instance
from tests.support.secured import SecuredGroup, bearer

pytestmark = pytest.mark.anyio

LETTERS = [
    DeadLetter(
        RecordPosition(0, number), 1_000 + number, "pos-invoices", RecordPosition(2, number), reason, b"K", value
    )
    for number, (reason, value) in enumerate([("not-json", b"\xff{"), ("no-total-amount", b"{}"), ("not-json", b"x")])
]
MIB = 2**20


class Selected(NamedTuple):
    """Dead letters that can be read several times."""

    letters: Iterable[DeadLetter]
    letter_filter: DeadLetterFilter

    def __iter__(self) -> Iterator[Any]:
        return (letter for letter in self.letters if letter in self.letter_filter)


class LargeLetters:
    """Each iteration makes dead letters of 2 MiB, 64 MiB in total."""

    def __iter__(self) -> Iterator[DeadLetter]:
        for number in range(32):
            position = RecordPosition(0, number)
            yield DeadLetter(position, number, "pos-invoices", position, "not-json", b"K" * MIB, b"v" * MIB)


class Kafka:
    """Plays the dead letters, and two moments of the system."""

    def __init__(self) -> None:
        self.letters: Iterable[DeadLetter] = LETTERS
        self.replayed: list[RecordPosition] = []
        self.looks = self.reads = 0

    def read(self, _: Settings, letter_filter: DeadLetterFilter) -> Iterable[DeadLetter]:
        self.reads += 1
        return Selected(self.letters, letter_filter)

    def replay(self, _: Settings, letters: Iterable[DeadLetter], __: object, since: int) -> int:
        self.replayed += (letter.position for letter in letters if letter.first_time >= since)
        return len(self.replayed)

    def status(self, _: Settings, __: Any, api: Any) -> Status:
        self.looks += 1
        appended = {"pos-invoices": 100 * self.looks}
        buckets = dict.fromkeys((0.5, float("inf")), 10 * self.looks)
        work = {"loyalty": QueryWork(80 * self.looks, self.looks, 1.5 * self.looks)}
        lags = [Lag("query loyalty", "pos-invoices", 20)]
        parts = [Part("kafka", "127.0.0.1:9092", None)]
        return Status(10.0 * self.looks, parts, appended, work, buckets, appended, lags, api.instances)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka()
    monkeypatch.setattr(operations.dead_letters, "DeadLetters", kafka.read)
    monkeypatch.setattr(operations.replaying, "replay", kafka.replay)
    monkeypatch.setattr(operations, "status_of", kafka.status)
    return kafka


@pytest.fixture
def client(kafka: Kafka) -> Iterator[TestClient]:  # noqa: ARG001 - it must be there first
    instance = Instance()
    instance.own_everything()
    settings = Settings(ledger_url="postgresql://loyalty:secret@db/loyalty")
    instance.app.state.dependencies.operations = Operations(settings)
    with TestClient(instance.app) as client:
        yield client


def test_dead_letters_are_counted_and_shown(client: TestClient) -> None:
    """The newest first, with the origin, and with bytes that are no UTF-8 in hexadecimal digits too."""
    body = client.get("/v1/dead-letters").json()
    assert (3, {"not-json": 2, "no-total-amount": 1}) == (body["total"], body["reasons"])
    assert ["0:2", "0:1", "0:0"] == [each["position"] for each in body["deadLetters"]]
    assert {
        "position": "0:0",
        "time": "1970-01-01T00:00:01.000Z",
        "topic": "pos-invoices",
        "origin": "2:0",
        "reason": "not-json",
        "size": 2,
        "key": "K",
        "text": "\ufffd{",
        "hex": "ff 7b",
    } == body["deadLetters"][-1]
    some = client.get("/v1/dead-letters", params={"reason": "NOT-json", "limit": 1}).json()
    assert (2, ["0:2"]) == (some["total"], [each["position"] for each in some["deadLetters"]])
    none = client.get("/v1/dead-letters", params={"limit": 0}).json()
    assert (3, [], None) == (none["total"], none["deadLetters"], none["next"])


def test_every_dead_letter_is_on_one_page(client: TestClient) -> None:
    """The last page has no cursor. A text that is no cursor is refused."""
    page = client.get("/v1/dead-letters", params={"limit": 2}).json()
    assert ["0:2", "0:1"] == [each["position"] for each in page["deadLetters"]]
    page = client.get("/v1/dead-letters", params={"limit": 1, "cursor": page["next"]}).json()
    assert (["0:0"], 3, None) == ([each["position"] for each in page["deadLetters"]], page["total"], page["next"])
    for wrong in ("", "x", "1.0", "-1.0.2"):
        assert "invalid-parameters" == problem_type(client.get("/v1/dead-letters", params={"cursor": wrong}), 422)


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """Fails if the block allocates this number of bytes at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def test_large_dead_letters_are_shown_in_part_and_take_little_memory(client: TestClient, kafka: Kafka) -> None:
    """Without a limit a client could fill the memory of the instance. The size is that of the whole value."""
    kafka.letters = LargeLetters()
    with memory_below(16 * MIB):
        body = client.get("/v1/dead-letters").json()
    assert (32, {MIB}) == (body["total"], {each["size"] for each in body["deadLetters"]})
    assert {("K" * 4_096, "v" * 4_096)} == {(each["key"], each["text"]) for each in body["deadLetters"]}


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_replay_of_large_dead_letters_takes_little_memory(client: TestClient, kafka: Kafka, *, dry_run: bool) -> None:
    kafka.letters = LargeLetters()
    order = {"positions": [f"0:{number}" for number in range(32)], "dryRun": dry_run, "older": True}
    with memory_below(16 * MIB):
        body = client.post("/v1/dead-letters/replay", json=order).json()
    assert (32, 0 if dry_run else 32) == (body["selected"], body["published"])


async def test_many_callers_share_one_read_of_the_dead_letters(kafka: Kafka) -> None:
    """Each read takes the whole topic. The instance keeps the results of a few queries for a short time."""
    found = Operations(Settings())

    async def reads_after(*reasons: str | None) -> int:
        await asyncio.gather(*(found.newest_dead_letters(reason, 50) for reason in reasons))
        return kafka.reads

    assert 1 == await reads_after(*[None] * 5)
    assert 1 == await reads_after(None)
    assert 11 == await reads_after(*map(str, range(10)), "9")
    assert len(found._newest_letters) < 10
    found._newest_letters.expire(time.monotonic() + operations._LETTERS_SECONDS)
    assert 12 == await reads_after("9")


async def test_waiting_callers_share_the_failure_of_a_read(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Kafka a read takes ten seconds and a thread. So many callers neither wait for each other nor take all
    threads.
    """
    found = Operations(Settings())

    def fail(*_: object) -> Any:
        kafka.reads += 1
        raise DeadLettersError("no Kafka broker answers")

    monkeypatch.setattr(operations.dead_letters, "DeadLetters", fail)
    monkeypatch.setattr(operations.runs, "read_runs", fail)

    async def failures_of(*reads: Coroutine[Any, Any, Any]) -> set[str]:
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        return {each.describe() if isinstance(each, problems.Problem) else str(each) for each in outcomes}

    expected = {"The operation needs Kafka: no Kafka broker answers. Repeat the request later."}
    assert expected == await failures_of(*(found.newest_dead_letters(reason, 50) for reason in (None, "a", None)))
    assert 1 == kafka.reads
    assert expected == await failures_of(found.newest_dead_letters(None, 50))
    assert 2 == kafka.reads
    assert expected == await failures_of(*(found.audits() for _ in range(3)))
    assert 3 == kafka.reads


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


def test_bytes_are_masked_without_their_scope(kafka: Kafka, tmp_path: Path) -> None:
    """An operator sees the reasons. Keys and values have personal data of all cards and shops. So a caller with a limit
    sees none, and replays none. The audit trail has each read with bytes, and each refusal.
    """
    secured = SecuredGroup(tmp_path)
    instance = Instance("http://one:8080", secured.security("http://one:8080"))
    instance.own_everything()
    instance.app.state.dependencies.operations = Operations(Settings())
    of_shop = secured.key(Scope.DEAD_LETTERS, stores=["STR1"]).text
    of_card = secured.issuer.token(scope="dead-letters:manage", card="4711")
    with TestClient(instance.app) as client:
        for text in (of_shop, of_card):
            answer = client.post("/v1/dead-letters/replay", headers=bearer(text), json={"positions": ["0:0"]})
            assert "not-yours" == problem_type(answer, 403)
        assert [] == kafka.replayed
        for text, shown in (
            (secured.key(Scope.OPERATE).text, {None}),
            (of_shop, {None}),
            (of_card, {None}),
            (secured.key(Scope.DEAD_LETTERS).text, {"K"}),
        ):
            headers = bearer(text)
            letters = client.get("/v1/dead-letters", headers=headers).json()["deadLetters"]
            assert shown == {each["key"] for each in letters}
            assert (shown == {None}) == all(each["text"] is None and each["hex"] is None for each in letters)
            page = client.get("/console/operations/dead-letters", headers={"Cookie": f"{COOKIE}={text}"}).text
            assert (shown == {None}) == ("bytes, hidden" in page) != ("Replay the selection" in page)
            assert "not-json" in client.get("/console/overview/reasons", headers={"Cookie": f"{COOKIE}={text}"}).text
        assert 403 == client.get("/v1/dead-letters", headers=bearer(secured.key(Scope.POINTS_ADJUST).text)).status_code
    read, replayed = "GET /v1/dead-letters", "POST /v1/dead-letters/replay"
    assert [(replayed, "403"), (replayed, "403"), (read, "200"), (read, "200"), (read, "403")] == [
        (each["Action"], each["Outcome"]) for each in secured.trail.records
    ]


def test_a_replay_publishes_the_selection_once(client: TestClient, kafka: Kafka) -> None:
    """A dry run publishes nothing, and an unknown position stops everything."""
    order: dict[str, Any] = {"positions": ["0:0", "0:2"], "dryRun": True, "older": True}
    expected = {"selected": 2, "published": 0, "leftOut": 0, "topics": {"pos-invoices": 2}, "dryRun": True}
    assert expected == client.post("/v1/dead-letters/replay", json=order).json()
    missing = client.post("/v1/dead-letters/replay", json={"positions": ["0:1", "0:9"]})
    assert ("unknown-dead-letter", ["0:9"]) == (problem_type(missing, 404), missing.json()["positions"])
    assert [] == kafka.replayed
    assert 2 == client.post("/v1/dead-letters/replay", json=order | {"dryRun": False}).json()["published"]
    assert [LETTERS[0].position, LETTERS[2].position] == kafka.replayed
    twice = client.post(
        "/v1/dead-letters/replay",
        content='{"positions":["0:1"],"dryRun":true,"dryRun":false}',
        headers={"content-type": "application/json"},
    )
    assert "unreadable-body" == problem_type(twice, 400)
    for positions in ([], ["1"], ["0:-1"]):
        assert 422 == client.post("/v1/dead-letters/replay", json={"positions": positions}).status_code


def test_a_dead_letter_that_the_api_may_not_publish_is_refused(client: TestClient, kafka: Kafka) -> None:
    """On a secured Kafka, a repetition would never help. Nothing is published, also not the other dead letters."""
    (api,) = (each for each in SERVICES if each.user == "api")
    assert [topics.LOYALTY] == [each for each in replaying._SOURCES if each not in api.writes]

    kafka.letters = [LETTERS[0], replace(LETTERS[1], topic="loyalty")]
    found: Operations = client.app.state.dependencies.operations  # type: ignore[attr-defined]
    found.settings = Settings().model_copy(update={"kafka_sasl_username": "api"})
    order = {"positions": ["0:0", "0:1"], "older": True}
    for dry_run in (True, False):
        answer = client.post("/v1/dead-letters/replay", json=order | {"dryRun": dry_run})
        assert ("replay-needs-pipeline", "loyalty") == (problem_type(answer, 422), answer.json()["topic"])
        assert "Retry-After" not in answer.headers
    assert [] == kafka.replayed
    assert 200 == client.post("/v1/dead-letters/replay", json=order | {"positions": ["0:0"]}).status_code
    for user in (None, "own-user-with-more-rights"):
        found.settings = Settings().model_copy(update={"kafka_sasl_username": user})
        assert 200 == client.post("/v1/dead-letters/replay", json=order).status_code


def test_a_replay_leaves_out_old_dead_letters(client: TestClient, kafka: Kafka) -> None:
    """The pipeline may have forgotten that it has processed their records."""
    young = replace(LETTERS[1], time=int(time.time() * 1_000))
    kafka.letters = [LETTERS[0], young, LETTERS[2]]
    order = {"positions": ["0:0", "0:1"]}
    expected = {"selected": 1, "published": 1, "leftOut": 1, "topics": {"pos-invoices": 1}, "dryRun": False}
    assert expected == client.post("/v1/dead-letters/replay", json=order).json()
    assert [young.position] == kafka.replayed
    assert 2 == client.post("/v1/dead-letters/replay", json=order | {"older": True}).json()["selected"]


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


def test_kafka_that_does_not_answer_is_a_problem(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Iterator[DeadLetter]:
        raise DeadLettersError("no Kafka broker answers at 127.0.0.1:9092")

    monkeypatch.setattr(operations.dead_letters, "DeadLetters", fail)
    answer = client.get("/v1/dead-letters")
    assert "broker-unavailable" == problem_type(answer, 503)
    assert "no Kafka broker answers" in answer.json()["detail"]


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


def test_the_second_status_has_rates(client: TestClient, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent requests share one status. Unknown figures are null."""
    first = client.get("/v1/status").json()
    assert first == client.get("/v1/status").json()
    assert 1 == kafka.looks
    assert (None, {"query loyalty": 20}) == (first["topics"][0]["rate"], first["topics"][0]["lag"])
    monkeypatch.setattr(operations, "_FRESH_SECONDS", 0)
    second = client.get("/v1/status").json()
    assert (200, 10.0) == (second["topics"][0]["records"], second["topics"][0]["rate"])
    assert [{"name": "loyalty", "rate": 8.0, "batchSeconds": 1.5}] == second["queries"]
    assert {"0.5": 0.5, "0.99": 0.5} == second["freshnessSeconds"]
    assert [True] == [each["self"] for each in second["instances"]]


async def test_a_stream_that_leaves_starts_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a part hangs, many clients connect again and again. They must not take all threads."""
    found, looks, end = Operations(Settings()), Semaphore(0), Event()
    api: Any = None

    def look(*_: object) -> Any:
        looks.release()
        assert end.wait(20)

    monkeypatch.setattr(operations, "status_of", look)

    async def connect_and_leave() -> None:
        with anyio.move_on_after(0.1):
            await found.status(api)

    async with anyio.create_task_group() as clients:
        for _ in range(3):
            clients.start_soon(connect_and_leave)
            await anyio.sleep(0.05)  # the next client comes before this one leaves
        await anyio.sleep(0.5)
        try:
            assert (True, False) == (looks.acquire(blocking=False), looks.acquire(blocking=False))
        finally:
            end.set()


async def test_the_status_does_not_wait_for_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its database hangs, the routes of the ledger fill the threads of FastAPI."""
    found, answered = Operations(Settings()), Event()
    api: Any = None
    monkeypatch.setattr(operations, "status_of", lambda *_: None)
    anyio.to_thread.current_default_thread_limiter().total_tokens = 1
    async with anyio.create_task_group() as reads:
        reads.start_soon(anyio.to_thread.run_sync, answered.wait, 20)
        await anyio.lowlevel.checkpoint()
        try:
            with anyio.fail_after(5):
                await found.status(api)
        finally:
            answered.set()


def test_the_status_is_a_stream(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event has the status. The stream ends when the instance stops."""
    streams = client.app.state.dependencies.streams  # type: ignore[attr-defined]
    monkeypatch.setattr(operations, "_FRESH_SECONDS", 0)
    monkeypatch.setattr("api.routers.status._STATUS_SECONDS", 0.01)
    looks = 0
    whole = Kafka.status

    def status(kafka: Kafka, *arguments: Any) -> Status:
        nonlocal looks
        looks += 1
        if looks == 3:
            streams.close()
        return whole(kafka, *arguments)

    monkeypatch.setattr(operations, "status_of", lambda *arguments: status(Kafka(), *arguments))
    events = client.get("/v1/status/events").text.split("\n\n")
    bodies = [orjson.loads(each.partition("data: ")[2]) for each in events if each.startswith("event: status")]
    assert 2 < len(bodies) < 6
    assert {"kafka"} == {part["name"] for body in bodies for part in body["parts"]}


def test_the_caller_and_the_settings_are_shown(client: TestClient) -> None:
    assert {"name": "", "scopes": sorted(Scope), "card": None, "stores": None} == client.get("/v1/caller").json()
    shown = client.get("/v1/settings").json()
    assert ("127.0.0.1", "postgresql://loyalty:…@db/loyalty") == (shown["api_host"], shown["ledger_url"])
