"""GET /v1/customers/{card}/events: instances in one process, and a changelog that the test compacts."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from api.events import balances
from api.events.balances import BalanceEvents, EventId
from schemas.topics import LOYALTY_BALANCES
from services.api_keys.keys import Scope
from services.messaging.avro import encoder
from services.state_stores.definition import StoreDefinition
from services.state_stores.task import ChangelogRecord
from tests.support.builders import IDS, problem_type
from tests.support.clusters import Group, StreamingTransport
from tests.support.secured import SecuredGroup, bearer

CARD = "9265846829"
PATH = f"/v1/customers/{CARD}/events"
OPENED = 1_767_373_451_000


def balance(sequence: int, opened: int = OPENED) -> dict[str, Any]:
    return {
        "CustomerCardNo": CARD,
        "TotalLoyaltyPoints": Decimal(sequence),
        "Sequence": sequence,
        "OpenedTime": opened,
        "UpdatedTime": OPENED,
    }


class Changelog:
    """The records of the card's partition. ``compact`` forgets all but the last one of the card."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.records: list[ChangelogRecord] = []
        self._next = 0
        for each in group.instances:
            each.app.state.dependencies.balance_events._history = self.read

    def write(self, record: dict[str, Any] | None) -> None:
        value = None if record is None else encoder(LOYALTY_BALANCES, IDS)(record)
        self.records.append(ChangelogRecord(self._next, 0, CARD.encode(), value))
        self._next += 1
        self._group.write([(LOYALTY_BALANCES, CARD, record)])

    def compact(self) -> None:
        del self.records[:-1]

    def read(self, _: StoreDefinition, __: int, key: bytes, span: range) -> list[ChangelogRecord]:
        return [each for each in self.records if each.offset in span and each.key == key]


class Stream:
    """The events of one connection."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str, str, Any]:
        """Name, id and data of the next event."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(20):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                elif "event" in fields:
                    return fields["event"], fields.get("id", ""), orjson.loads(fields["data"])
        raise AssertionError("the stream has ended")

    async def sequence(self) -> int:
        name, _, data = await self.next()
        assert "balance" == name
        return int(data["Sequence"])

    async def heartbeat(self) -> None:
        """Wait until the stream has read the store and the changelog, and has nothing more to send."""
        async with asyncio.timeout(20):
            assert ":" == await anext(line async for line in self._lines if line == ":")

    async def end(self) -> None:
        """Wait for the end of the stream."""
        async with asyncio.timeout(20):
            async for _ in self._lines:
                pass


class Client:
    def __init__(self, group: Group) -> None:
        self.group = group
        self.http = httpx.AsyncClient(transport=StreamingTransport(group))

    @asynccontextmanager
    async def stream(self, number: int = 0, last: str | None = None, **headers: str) -> AsyncIterator[Stream]:
        all_headers = headers | ({"Last-Event-ID": last} if last is not None else {})
        url = self.group.instances[number].url + PATH
        async with self.http.stream("GET", url, headers=all_headers) as response:
            yield Stream(response)

    async def erasure_after(self, last: str) -> str:
        """The id of the event ``erased``, which must be the first one after this event."""
        async with self.stream(last=last) as stream:
            name, event_id, _ = await stream.next()
        assert "erased" == name
        return event_id

    async def refusal(self, number: int = 0, last: str | None = None, **headers: str) -> httpx.Response:
        async with self.stream(number, last, **headers) as stream, asyncio.timeout(20):
            await stream.response.aread()
            return stream.response


def with_step_seconds(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.01) -> None:
    """Let streams send heartbeats, and give up reads of the changelog, after this time."""
    monkeypatch.setattr(balances.EventStreams.step, "__defaults__", (seconds,))


@pytest.fixture(autouse=True)
def _no_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a heartbeat a stream sees everything. So without a heartbeat a test proves what wakes the stream."""
    with_step_seconds(monkeypatch, 60)


def run(
    scenario: Callable[[Client, Changelog], Any], size: int = 1, group: Group | None = None, owner: int = 0
) -> None:
    async def main() -> None:
        cluster = group or Group.of(size)
        cluster.share(lambda _: owner, lambda _: 1 - owner if len(cluster.instances) > 1 else None)
        async with cluster.running():
            await scenario(Client(cluster), Changelog(cluster))

    asyncio.run(main())


def test_each_revision_comes_once_and_in_order() -> None:
    """The stream begins with the current balance. Its ids have the opened time and the sequence."""

    async def scenario(client: Client, changelog: Changelog) -> None:
        changelog.write(balance(1))
        async with client.stream() as stream:
            assert "text/event-stream; charset=utf-8" == stream.response.headers["content-type"]
            assert "no-store" == stream.response.headers["cache-control"]
            name, event_id, data = await stream.next()
            assert ("balance", f"{OPENED}.1.0", "1.00") == (name, event_id, data["TotalLoyaltyPoints"])
            for sequence in (2, 3, 3, 2, 5):  # a record that is not newer changes nothing
                changelog.write(balance(sequence))
            assert [2, 3, 5] == [await stream.sequence() for _ in range(3)]
            changelog.write(None)
            assert "erased" == (await stream.next())[0]
            changelog.write(balance(1, OPENED + 1))
            assert ("balance", f"{OPENED + 1}.1.7") == (await stream.next())[:2]

    run(scenario)


@pytest.mark.parametrize("owner", [0, 1])
def test_head_of_a_stream_ends_with_its_headers(owner: int) -> None:
    """The connection is free again, and the stream leaves its place, also at an instance that forwards."""

    async def scenario(client: Client, changelog: Changelog) -> None:
        changelog.write(balance(1))
        async with asyncio.timeout(20):
            answer = await client.http.head(client.group.instances[0].url + PATH)
        assert (200, "text/event-stream; charset=utf-8") == (answer.status_code, answer.headers["content-type"])
        assert b"" == answer.content
        streams = [each.app.state.dependencies.balance_events._streams for each in client.group.instances]
        assert [0] * len(streams) == [each._open.total() for each in streams]

    run(scenario, size=2, owner=owner)


def test_a_client_resumes_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """After any revision, the client gets all later revisions and no others."""

    async def scenario(client: Client, changelog: Changelog) -> None:
        for sequence in (1, 2, 3):
            changelog.write(balance(sequence))
        async with client.stream(last=f"{OPENED}.1.0") as stream:
            assert [2, 3] == [await stream.sequence() for _ in range(2)]
            changelog.write(balance(4))
            assert 4 == await stream.sequence()
        with_step_seconds(monkeypatch)
        async with client.stream(last=f"{OPENED}.4.3") as stream, client.stream(last=f"{OPENED}.6.5") as ahead:
            await asyncio.gather(stream.heartbeat(), ahead.heartbeat())
            for sequence in (5, 6, 7):
                changelog.write(balance(sequence))
            assert [5, 6, 7] == [await stream.sequence() for _ in range(3)]
            # This client has seen more than the copy had when it connected. It never gets an older revision.
            assert 7 == await ahead.sequence()

    run(scenario)


@pytest.mark.parametrize("last", [f"{OPENED}.1.0", f"{OPENED}.1", "7.1.0"])
def test_a_client_learns_of_revisions_that_are_compacted_away(last: str) -> None:
    """It gets an event ``gap`` and then the current balance.

    This is the same for an id without offset, or of another account.
    """

    async def scenario(client: Client, changelog: Changelog) -> None:
        for sequence in (1, 2, 3):
            changelog.write(balance(sequence))
        changelog.compact()
        async with client.stream(last=last) as stream:
            assert ("gap", "", {"after": last}) == await stream.next()
            assert 3 == await stream.sequence()
            changelog.write(balance(4))
            assert 4 == await stream.sequence()

    run(scenario)


def test_a_long_history_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that comes back after more offsets than the limit gets ``gap`` and the current balance."""
    monkeypatch.setattr(balances, "_LONGEST_HISTORY", 2)

    async def scenario(client: Client, changelog: Changelog) -> None:
        for sequence in (1, 2, 3):
            changelog.write(balance(sequence))
        async with client.stream(last=f"{OPENED}.1.0") as stream:
            assert "gap" == (await stream.next())[0]
            assert 3 == await stream.sequence()
        async with client.stream(last=f"{OPENED}.2.1") as stream:
            assert 3 == await stream.sequence()

    run(scenario)


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


def test_a_slow_history_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client gets ``gap`` and the current balance, also without a free thread. Its read then never starts."""
    with_step_seconds(monkeypatch, 0.1)

    async def scenario(client: Client, changelog: Changelog) -> None:
        for sequence in (1, 2, 3):
            changelog.write(balance(sequence))
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

    run(scenario)


def test_a_stream_ends_with_its_instance_during_a_read() -> None:
    """The stop of an instance does not wait for the changelog."""

    async def scenario(client: Client, changelog: Changelog) -> None:
        for sequence in (1, 2):
            changelog.write(balance(sequence))
        history = SlowHistory(client, changelog)
        try:
            async with client.stream(last=f"{OPENED}.1.0") as stream:
                assert await asyncio.to_thread(history.begun.acquire, timeout=20)
                client.group.instances[0].app.state.dependencies.streams.close()
                await stream.end()
        finally:
            history.release()

    run(scenario)


def test_an_erasure_that_the_client_missed_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets the erasure once, also if it connects after the erasure."""

    async def scenario(client: Client, changelog: Changelog) -> None:
        changelog.write(balance(1))
        changelog.write(None)
        event_id = await client.erasure_after(f"{OPENED}.1.0")
        assert "unknown-customer" == problem_type(await client.refusal(), 404)
        with_step_seconds(monkeypatch)
        async with client.stream(last=event_id) as stream:
            await stream.heartbeat()
            changelog.write(balance(1, OPENED + 1))
            assert 1 == await stream.sequence()

    run(scenario)


def test_an_erasure_comes_once_also_if_the_changelog_has_forgotten_it() -> None:
    """A client connects again every ten minutes, and Kafka keeps a deletion for a day."""

    async def scenario(client: Client, changelog: Changelog) -> None:
        changelog.write(balance(1))
        changelog.write(None)
        event_id = await client.erasure_after(f"{OPENED}.1.0")
        changelog.records.clear()
        async with client.stream(last=event_id) as stream:
            changelog.write(balance(1, OPENED + 1))
            assert ("balance", f"{OPENED + 1}.1.2") == (await stream.next())[:2]

    run(scenario)


def test_a_balance_of_the_same_account_can_follow_an_erasure() -> None:
    """`loyalty rebuild` replaces a wrong balance: it writes a deletion, and then the right balance."""

    async def scenario(client: Client, changelog: Changelog) -> None:
        changelog.write(balance(5))
        async with client.stream() as stream:
            assert 5 == await stream.sequence()
            changelog.write(None)
            changelog.write(balance(3))
            name, event_id, _ = await stream.next()
            assert "erased" == name
            assert 3 == await stream.sequence()
            changelog.write(balance(4))
            assert 4 == await stream.sequence()
        async with client.stream(last=event_id) as stream:
            assert [3, 4] == [await stream.sequence() for _ in range(2)]
            changelog.write(balance(5))
            assert 5 == await stream.sequence()

    run(scenario)


def test_a_store_that_is_built_again_repeats_no_old_erasure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It applies the changelog from its start, with the erasure of an earlier account of the card."""
    with_step_seconds(monkeypatch)

    async def scenario(client: Client, changelog: Changelog) -> None:
        changelog.write(balance(1, OPENED - 1))
        changelog.write(None)
        changelog.write(balance(1))
        async with client.stream(last=f"{OPENED}.1") as stream:
            await stream.heartbeat()
            waiters = client.group.instances[0].waiters
            waiters.pass_on("loyalty-balances", [ChangelogRecord(1, 0, CARD.encode(), None)])
            changelog.write(balance(2))
            assert 2 == await stream.sequence()

    run(scenario)


def test_another_instance_forwards_and_a_standby_continues() -> None:
    """The stream of a dead owner ends. The standby sends the rest, and the client sees each revision once."""

    async def scenario(client: Client, changelog: Changelog) -> None:
        group = client.group
        changelog.write(balance(1))
        async with client.stream(0) as stream:
            assert 1 == await stream.sequence()
            assert group.instances[1].url + PATH in [str(each.url) for each in group.sent]
            changelog.write(balance(2))
            assert 2 == await stream.sequence()
            group.instances[1].app.state.dependencies.streams.close()
            await stream.end()
        group.dead.add(group.instances[1].url)
        changelog.write(balance(3))
        async with client.stream(0, last=f"{OPENED}.2.1") as stream:
            assert 3 == await stream.sequence()

    run(scenario, size=2, owner=1)


@pytest.mark.parametrize("end_offset", [0, 1])
def test_a_standby_behind_the_client_does_not_say_that_the_account_is_erased(end_offset: int) -> None:
    """The client has the first balance of an account, and the standby does not have it yet.

    Without a newer end offset the standby cannot know whether the topic was created again, so it says ``gap``.
    """

    async def scenario(client: Client, changelog: Changelog) -> None:
        group = client.group
        standby, owner = group.instances
        group.dead.add(owner.url)
        store = standby.stores["customer-balances"]
        store.serving(store.partition_of(CARD.encode())).progress.end_offset = end_offset
        async with client.stream(0, last=f"{OPENED}.1.0") as stream:
            if end_offset == 0:
                assert "gap" == (await stream.next())[0]
            changelog.write(balance(1))
            changelog.write(balance(2))
            assert 2 == await stream.sequence()

    run(scenario, size=2, owner=1)


def test_a_stream_ends_when_the_partition_moves_or_the_client_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client connects again, and finds the new owner or the records that it has missed."""
    monkeypatch.setattr("services.state_stores.waiters._MOST_RECORDS", 3)

    async def scenario(client: Client, changelog: Changelog) -> None:
        changelog.write(balance(1))
        async with client.stream() as stream:
            assert 1 == await stream.sequence()
            for sequence in range(2, 10):
                changelog.write(balance(sequence))
            await stream.end()
        async with client.stream() as stream:
            assert 9 == await stream.sequence()
            instance = client.group.instances[0]
            instance.membership.owned = frozenset()
            instance.membership.changed()
            await stream.end()

    run(scenario)


@pytest.mark.parametrize("last", ["", "x", "1", "1.2.3.4", "99999999999999999999.1", "-1.2"])
def test_an_id_of_something_else_is_refused(last: str) -> None:
    async def scenario(client: Client, changelog: Changelog) -> None:
        changelog.write(balance(1))
        assert "invalid-parameters" == problem_type(await client.refusal(last=last), 422)

    run(scenario)


def test_streams_need_the_scope_the_card_and_a_place(tmp_path: Path) -> None:
    """The limits of a caller hold, also behind a forward. Places are free again when streams end."""
    secured = SecuredGroup(tmp_path)
    group = Group.of(2, secured.security)

    async def scenario(client: Client, changelog: Changelog) -> None:
        changelog.write(balance(1))
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

    run(scenario, group=group, owner=1)


@pytest.mark.parametrize("owner", [0, 1], ids=["local", "forwarded"])
def test_streams_that_open_at_once_get_no_more_places(owner: int) -> None:
    """A place is taken when it is checked, also before a refusal. Ended streams leave nothing behind."""

    async def scenario(client: Client, changelog: Changelog) -> None:
        streams = client.group.instances[0].app.state.dependencies.streams
        streams._most = 3
        assert [404, 404, 404] == [(await client.refusal()).status_code for _ in range(3)]
        changelog.write(balance(1))
        url = client.group.instances[0].url + PATH
        requests = [client.http.build_request("GET", url) for _ in range(10)]
        opened = await asyncio.gather(*(client.http.send(each, stream=True) for each in requests))
        assert [200] * 3 + [429] * 7 == sorted(each.status_code for each in opened)
        for each in opened:
            await each.aclose()
        assert {} == streams._open

    run(scenario, size=2, owner=owner)


@pytest.mark.parametrize("number", [0, 1], ids=["forwarded", "local"])
@pytest.mark.parametrize("credentials", ["key", "token"])
def test_a_stream_ends_with_its_credentials(
    credentials: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quiet stream ends at the heartbeat after its key is revoked or its token expires, also behind a forward."""
    with_step_seconds(monkeypatch)
    secured = SecuredGroup(tmp_path)
    key = secured.key(Scope.BALANCE_READ)

    async def scenario(client: Client, changelog: Changelog) -> None:
        changelog.write(balance(1))
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

    run(scenario, group=Group.of(2, secured.security), owner=1)


def test_ids_keep_their_text() -> None:
    for text in ("1.2.3", "1.2", "0.7.0"):
        assert text == str(EventId.parse(text))
