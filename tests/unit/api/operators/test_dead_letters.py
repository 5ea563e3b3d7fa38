"""Routes that show dead letters and replay them."""

import asyncio
import time
import tracemalloc
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import operations
from api.console.own_api import COOKIE
from api.http import problems
from api.operations import Operations
from schemas import topics
from schemas.access import SERVICES
from services.api_keys.keys import Scope
from services.messaging import replaying
from services.messaging.dead_letters import DeadLetter, DeadLettersError, RecordPosition
from services.settings import Settings
from tests.support.builders import problem_type
from tests.support.clusters import Instance
from tests.support.secured import SecuredGroup, bearer
from tests.unit.api.operators.played_kafka import LETTERS, Kafka

pytestmark = pytest.mark.anyio
MIB = 2**20


class LargeLetters:
    """Each iteration makes dead letters of 2 MiB, 64 MiB in total."""

    def __iter__(self) -> Iterator[DeadLetter]:
        for number in range(32):
            position = RecordPosition(0, number)
            yield DeadLetter(position, number, "pos-invoices", position, "not-json", b"K" * MIB, b"v" * MIB)


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


def test_kafka_that_does_not_answer_is_a_problem(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Iterator[DeadLetter]:
        raise DeadLettersError("no Kafka broker answers at 127.0.0.1:9092")

    monkeypatch.setattr(operations.dead_letters, "DeadLetters", fail)
    answer = client.get("/v1/dead-letters")
    assert "broker-unavailable" == problem_type(answer, 503)
    assert "no Kafka broker answers" in answer.json()["detail"]


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
            if shown == {None}:  # HEAD has no record either, because its caller sees no bytes.
                client.head("/v1/dead-letters", headers=headers)
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
