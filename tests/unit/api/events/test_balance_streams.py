"""GET /v1/customers/{card}/events: how a connection begins and ends: forwards, slow reads, limits and credentials."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.types import Message

from api.events import balances
from api.events.balances import BalanceEvents
from api.events.streams import EventStreams
from services.api_keys.keys import Scope
from services.state_stores.definition import StoreDefinition, VersionedValue
from services.state_stores.task import ChangelogRecord
from tests.support.builders import CARD, problem_type
from tests.support.clusters import Group, damage
from tests.support.secured import SecuredGroup, bearer
from tests.unit.api.events.stream_client import OPENED, PATH, Changelog, Client, balance, connected

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("step_seconds")]


@pytest.mark.parametrize("owner", [0, 1])
async def test_a_head_request_of_a_stream_ends_with_its_headers(owner: int) -> None:
    """The connection is free again, and the stream leaves its place, also at an instance that forwards."""
    async with connected(size=2, owner=owner) as client:
        client.changelog.write(balance(1))
        async with asyncio.timeout(20):
            answer = await client.http.head(client.group.instances[0].url + PATH)
        assert (200, "text/event-stream; charset=utf-8") == (answer.status_code, answer.headers["content-type"])
        assert b"" == answer.content
        streams = [each.app.state.dependencies.balance_events._streams for each in client.group.instances]
        assert [0] * len(streams) == [each._open.total() for each in streams]


async def test_another_instance_forwards_and_a_standby_continues() -> None:
    """The stream of a dead owner ends. The standby sends the rest, and the client sees each revision once."""
    async with connected(size=2, owner=1) as client:
        group = client.group
        client.changelog.write(balance(1))
        async with client.stream(0) as stream:
            assert 1 == await stream.sequence()
            assert group.instances[1].url + PATH in [str(each.url) for each in group.sent]
            client.changelog.write(balance(2))
            assert 2 == await stream.sequence()
            group.instances[1].app.state.dependencies.streams.close()
            await stream.end()
        group.dead.add(group.instances[1].url)
        client.changelog.write(balance(3))
        async with client.stream(0, last=f"{OPENED}.2.1") as stream:
            assert 3 == await stream.sequence()


async def test_a_stream_that_no_copy_serves_is_refused_with_the_problem_of_the_owner() -> None:
    """The owner restores half of its copy. The standby is damaged, and that says nothing about the end of the wait."""
    async with connected(size=2, owner=1) as client:
        client.changelog.write(balance(1))
        owner, standby = client.task(1), client.task(0)
        owner.progress.restored, owner.progress.target = False, 2
        damage(standby)
        refused = await client.refusal()
        assert ("restoring", 0.5) == (problem_type(refused, 503), refused.json()["restoredShare"])


async def test_a_stream_ends_when_the_partition_moves_or_the_client_is_too_slow(
    client: Client, changelog: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client connects again, and finds the new owner or the records that it has missed."""
    monkeypatch.setattr("services.state_stores.waiters._MOST_RECORDS", 3)
    changelog.write(balance(1))
    async with client.stream() as stream:
        assert 1 == await stream.sequence()
        changelog.write(*map(balance, range(2, 10)))
        await stream.end()
    async with client.stream() as stream:
        assert 9 == await stream.sequence()
        instance = client.group.instances[0]
        instance.membership.owned = frozenset()
        instance.membership.changed()
        await stream.end()


class SlowHistory:
    """Reads of the changelog that wait until ``release``."""

    def __init__(self, client: Client, changelog: Changelog) -> None:
        self.events: BalanceEvents = client.group.instances[0].app.state.dependencies.balance_events
        self.events._history = self._read
        self._changelog = changelog
        self._released = threading.Event()
        self.begun = threading.Semaphore(0)
        self.reads = 0

    def _read(self, definition: StoreDefinition, partition: int, key: bytes, span: range) -> list[ChangelogRecord]:
        self.reads += 1
        self.begun.release()
        self._released.wait(60)
        return self._changelog.read(definition, partition, key, span)

    def release(self) -> None:
        """Let all reads end, and wait for their threads."""
        self._released.set()
        self.events._readers.shutdown()


@pytest.mark.parametrize("breaks", [False, True], ids=["the client disconnects", "the connection breaks"])
@pytest.mark.parametrize("owner", [0, 1], ids=["local", "forwarded"])
async def test_a_client_that_leaves_before_the_head_leaves_no_stream(owner: int, *, breaks: bool) -> None:
    """The head waits, because the client has not read an earlier response. Otherwise the owner would send for ever."""
    async with connected(size=2, owner=owner) as client:
        client.changelog.write(balance(1))
        asked, owning = client.group.instances[0], client.group.instances[owner]
        path = {"path": PATH, "raw_path": PATH.encode(), "query_string": b"", "root_path": ""}
        scope = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "headers": [], **path}
        head_waits = asyncio.Event()

        async def receive() -> Message:
            await head_waits.wait()
            return {"type": "http.disconnect"}

        async def send(_: Message) -> None:
            if breaks:
                raise ConnectionError
            head_waits.set()
            await asyncio.Event().wait()

        async with asyncio.timeout(20):
            with suppress(ConnectionError):
                await asked.app(scope, receive, send)
        assert owner == sum(PATH in str(each.url) for each in client.group.sent)
        assert {} == owning.waiters._followers


async def test_a_slow_read_of_the_history_ends(
    client: Client, changelog: Changelog, step_seconds: Callable[[float], None]
) -> None:
    """Each client gets ``gap`` and the current balance, also if no thread is free. Then the read never starts."""
    step_seconds(0.1)
    changelog.write(*map(balance, (1, 2, 3)))
    history = SlowHistory(client, changelog)
    try:
        for sequence in range(3, 9):
            async with client.stream(last=f"{OPENED}.1.0") as stream:
                assert "gap" == (await stream.next())[0]
                assert sequence == await stream.sequence()
                changelog.write(balance(sequence + 1))
                assert sequence + 1 == await stream.sequence()
    finally:
        history.release()
    assert history.reads <= balances._MOST_HISTORIES_AT_ONCE


async def test_a_slow_schema_registry_does_not_stop_other_requests(
    client: Client, changelog: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder asks the registry for schemas that this process has not used yet. Meanwhile, the event loop goes on.

    If the registry takes too long, the stream ends.
    """
    begun, answered = threading.Event(), threading.Event()
    decode = balances._Revisions._value

    def wait_and_decode(revisions: balances._Revisions, body: bytes, record: ChangelogRecord) -> VersionedValue | None:
        begun.set()
        assert answered.wait(5), "the event loop waits"
        return decode(revisions, body, record)

    monkeypatch.setattr(balances._Revisions, "_value", wait_and_decode)
    changelog.write(*map(balance, (1, 2, 3)))
    async with client.stream(last=f"{OPENED}.1.0") as stream:
        assert await asyncio.to_thread(begun.wait, 20)
        answered.set()
        assert [2, 3] == [await stream.sequence() for _ in range(2)]
    answered.clear()
    monkeypatch.setattr(EventStreams.step, "__defaults__", (0.1,))
    async with client.stream(last=f"{OPENED}.1.0") as stream:
        await stream.end()
    answered.set()


async def test_a_stream_ends_with_its_instance_during_a_read(client: Client, changelog: Changelog) -> None:
    """The stop of an instance does not wait for the changelog."""
    changelog.write(balance(1), balance(2))
    history = SlowHistory(client, changelog)
    try:
        async with client.stream(last=f"{OPENED}.1.0") as stream:
            assert await asyncio.to_thread(history.begun.acquire, timeout=20)
            client.group.instances[0].app.state.dependencies.streams.close()
            await stream.end()
    finally:
        history.release()


async def test_streams_need_the_scope_the_card_and_a_place(tmp_path: Path) -> None:
    """The limits of a caller hold, also behind a forward. Places are free again when streams end."""
    secured = SecuredGroup(tmp_path)
    group = Group.of(2, secured.security)
    async with connected(group=group, owner=1) as client:
        client.changelog.write(balance(1))
        own = bearer(secured.issuer.token(scope=Scope.BALANCE_READ, card=CARD))
        for claims in ({"scope": Scope.LEDGER_READ}, {"scope": Scope.BALANCE_READ, "card": "other"}):
            refused = await client.refusal(**bearer(secured.issuer.token(**claims)))
            assert 403 == refused.status_code
        assert 401 == (await client.refusal()).status_code
        client.group.instances[0].app.state.dependencies.streams._most = 1
        async with client.stream(**own) as stream:
            assert 1 == await stream.sequence()
            assert "too-many-streams" == problem_type(await client.refusal(**own), 429)
        async with client.stream(**own) as stream:
            assert 1 == await stream.sequence()


@pytest.mark.parametrize("limit", [{}, {"card": CARD}])
async def test_a_stream_says_that_the_card_was_replaced(tmp_path: Path, limit: dict[str, str]) -> None:
    """The 0.00 points of the old card are no balance. A caller with one card does not see the new card."""
    secured = SecuredGroup(tmp_path)
    async with connected(group=Group.of(1, secured.security)) as client:
        client.changelog.write(balance(1), {**balance(2), "MovedTo": "NEW-CARD"}, balance(1, OPENED + 1))
        own = bearer(secured.issuer.token(scope=Scope.BALANCE_READ, **limit))
        async with client.stream(last=f"{OPENED}.1.0", **own) as stream:
            new_card = {} if limit else {"newCard": "NEW-CARD"}
            assert ("card-replaced", f"{OPENED}.2.1", new_card) == await stream.next()
            assert 1 == await stream.sequence()


@pytest.mark.parametrize("owner", [0, 1], ids=["local", "forwarded"])
async def test_streams_that_open_at_once_get_no_more_places(owner: int) -> None:
    """The check takes the place, also before a refusal. Ended streams leave nothing behind."""
    async with connected(size=2, owner=owner) as client:
        streams = client.group.instances[0].app.state.dependencies.streams
        streams._most = 3
        assert [404, 404, 404] == [(await client.refusal()).status_code for _ in range(3)]
        client.changelog.write(balance(1))
        url = client.group.instances[0].url + PATH
        requests = [client.http.build_request("GET", url) for _ in range(10)]
        opened = await asyncio.gather(*(client.http.send(each, stream=True) for each in requests))
        assert [200] * 3 + [429] * 7 == sorted(each.status_code for each in opened)
        for each in opened:
            await each.aclose()
        assert {} == streams._open


@pytest.mark.parametrize("number", [0, 1], ids=["forwarded", "local"])
@pytest.mark.parametrize("credentials", ["key", "token"])
async def test_a_stream_ends_with_its_credentials(
    credentials: str,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_seconds: Callable[[float], None],
) -> None:
    """A quiet stream ends at the heartbeat after its key is revoked or its token expires, also behind a forward."""
    step_seconds(0.01)
    secured = SecuredGroup(tmp_path)
    key = secured.key(Scope.BALANCE_READ)
    async with connected(group=Group.of(2, secured.security), owner=1) as client:
        client.changelog.write(balance(1))
        token, now = secured.issuer.token(scope=Scope.BALANCE_READ), time.time()
        own = bearer(key.text if credentials == "key" else token)
        async with client.stream(number, **own) as stream:
            assert 1 == await stream.sequence()
            if credentials == "key":
                secured.publish(replace(key.key, revoked_time=1))
            else:  # a minute, and the seconds that two clocks may differ
                monkeypatch.setattr(time, "time", lambda: now + 66)
            await stream.end()
        assert 401 == (await client.refusal(number, **own)).status_code
