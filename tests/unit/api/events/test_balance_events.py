"""GET /v1/customers/{card}/events: which balances, gaps and erasures a client gets, also when it comes back."""

import asyncio
from collections.abc import Callable

import pytest

from api.events import balances
from api.events.balances import EventId, _Revisions
from schemas.topics import LOYALTY_BALANCES
from services.messaging.avro import encoder
from services.state_stores import catalogue
from services.state_stores.task import ChangelogRecord
from tests.support.builders import CARD, IDS, problem_type
from tests.unit.api.events.stream_client import OPENED, Changelog, Client, balance, connected

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("step_seconds")]


async def test_each_revision_comes_once_and_in_order(client: Client, changelog: Changelog) -> None:
    """The stream begins with the current balance. Its ids have the opened time and the sequence."""
    changelog.write(balance(1))
    async with client.stream() as stream:
        assert "text/event-stream; charset=utf-8" == stream.response.headers["content-type"]
        assert "no-store" == stream.response.headers["cache-control"]
        name, event_id, data = await stream.next()
        assert ("balance", f"{OPENED}.1.0", "1.00") == (name, event_id, data["TotalLoyaltyPoints"])
        changelog.write(*map(balance, (2, 3, 3, 2, 5)))  # a record that is not newer changes nothing
        assert [2, 3, 5] == [await stream.sequence() for _ in range(3)]
        changelog.write(None)
        assert "erased" == (await stream.next())[0]
        changelog.write(balance(1, OPENED + 1))
        assert ("balance", f"{OPENED + 1}.1.7") == (await stream.next())[:2]


async def test_a_client_gets_all_revisions_after_its_last_one(
    client: Client, changelog: Changelog, step_seconds: Callable[[float], None]
) -> None:
    """This holds for each revision. The client gets no others."""
    changelog.write(*map(balance, (1, 2, 3)))
    async with client.stream(last=f"{OPENED}.1.0") as stream:
        assert [2, 3] == [await stream.sequence() for _ in range(2)]
        changelog.write(balance(4))
        assert 4 == await stream.sequence()
    step_seconds(0.01)
    client.report_end(6)
    async with client.stream(last=f"{OPENED}.4.3") as stream, client.stream(last=f"{OPENED}.6.5") as ahead:
        await asyncio.gather(stream.heartbeat(), ahead.heartbeat())
        changelog.write(*map(balance, (5, 6, 7)))
        assert [5, 6, 7] == [await stream.sequence() for _ in range(3)]
        # This client has seen more than the copy had when it connected. It never gets an older revision.
        assert 7 == await ahead.sequence()


@pytest.mark.parametrize("last", [f"{OPENED}.1.0", f"{OPENED}.1", "7.1.0"])
async def test_a_client_learns_of_revisions_that_are_compacted_away(
    client: Client, changelog: Changelog, last: str
) -> None:
    """It gets an event ``gap`` and then the current balance.

    This is the same for an id without offset, or of another account.
    """
    changelog.write(*map(balance, (1, 2, 3)))
    changelog.compact()
    async with client.stream(last=last) as stream:
        assert ("gap", "", {"after": last}) == await stream.next()
        assert 3 == await stream.sequence()
        changelog.write(balance(4))
        assert 4 == await stream.sequence()


async def test_a_long_history_is_not_read(
    client: Client, changelog: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that comes back after more offsets than the limit gets ``gap`` and the current balance."""
    monkeypatch.setattr(balances, "_LONGEST_HISTORY", 2)
    changelog.write(*map(balance, (1, 2, 3)))
    async with client.stream(last=f"{OPENED}.1.0") as stream:
        assert "gap" == (await stream.next())[0]
        assert 3 == await stream.sequence()
    async with client.stream(last=f"{OPENED}.2.1") as stream:
        assert 3 == await stream.sequence()


async def test_an_erasure_that_the_client_missed_is_an_event(
    client: Client, changelog: Changelog, step_seconds: Callable[[float], None]
) -> None:
    """The client gets the erasure once, also if it connects after the erasure. It misses nothing that follows."""
    changelog.write(balance(1), None)
    event_id = await client.erasure_after(f"{OPENED}.1.0")
    assert "unknown-customer" == problem_type(await client.refusal(), 404)
    client.report_end(2)
    async with client.stream(last=f"{OPENED}.1") as without_offset:
        assert ["gap", "erased"] == [(await without_offset.next())[0] for _ in range(2)]
        step_seconds(0.01)
        async with client.stream(last=event_id) as stream:
            await stream.heartbeat()
            changelog.write(balance(1, OPENED + 1))
            assert [1, 1] == [await each.sequence() for each in (without_offset, stream)]


async def test_a_copy_that_lags_sends_an_erasure_after_it_has_caught_up(
    client: Client, changelog: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client knows no offset. The copy has not applied the record after the erasure, which is of another card."""
    monkeypatch.setattr("services.state_stores.waiters._PAUSE_SECONDS", 0.01)
    changelog.write(balance(1), None)
    client.report_end(3)
    async with client.stream(last=f"{OPENED}.1") as stream:
        first = asyncio.create_task(stream.next())
        assert not (await asyncio.wait([first], timeout=0.1))[0]
        client.advance(3)
        assert ["gap", "erased"] == [(await first)[0], (await stream.next())[0]]


async def test_an_erasure_comes_once_also_if_the_changelog_has_forgotten_it(
    client: Client, changelog: Changelog
) -> None:
    """A client connects again every ten minutes, and Kafka keeps a deletion for a day."""
    changelog.write(balance(1), None)
    event_id = await client.erasure_after(f"{OPENED}.1.0")
    changelog.records.clear()
    async with client.stream(last=event_id) as stream:
        changelog.write(balance(1, OPENED + 1))
        assert ("balance", f"{OPENED + 1}.1.2") == (await stream.next())[:2]


async def test_a_balance_of_the_same_account_can_follow_an_erasure(client: Client, changelog: Changelog) -> None:
    """`loyalty rebuild` replaces a wrong balance: it writes a deletion, and then the right balance. A pipeline that
    starts again can write a balance twice.
    """
    changelog.write(balance(5))
    async with client.stream() as stream:
        assert 5 == await stream.sequence()
        changelog.write(None, balance(3))
        name, event_id, _ = await stream.next()
        assert "erased" == name
        assert 3 == await stream.sequence()
        changelog.write(balance(4), balance(4), balance(5))
        assert [4, 5] == [await stream.sequence() for _ in range(2)]
    async with client.stream(last=event_id) as stream:
        assert [3, 4, 5] == [await stream.sequence() for _ in range(3)]
        changelog.write(balance(6))
        assert 6 == await stream.sequence()


async def test_a_store_that_is_built_again_repeats_no_old_erasure(
    client: Client, changelog: Changelog, step_seconds: Callable[[float], None]
) -> None:
    """It applies the changelog from its start, with the erasure of an earlier account of the card."""
    step_seconds(0.01)
    changelog.write(balance(1, OPENED - 1), None, balance(1))
    async with client.stream(last=f"{OPENED}.1") as stream:
        await stream.heartbeat()
        waiters = client.group.instances[0].waiters
        waiters.pass_on("loyalty-balances", [ChangelogRecord(1, 0, CARD.encode(), None)])
        changelog.write(balance(2))
        assert 2 == await stream.sequence()


@pytest.mark.parametrize("last", ["2.3", "2"])
@pytest.mark.parametrize("known", [0, 1])
async def test_a_copy_that_does_not_know_how_far_it_is_behind_repeats_no_erasure(
    client: Client, changelog: Changelog, known: int, last: str
) -> None:
    """The client has the erasure at offset 1 and two balances of the next account. The copy does not have them yet.

    It asks the broker for the end of the changelog before it says anything. A client without an offset gets ``gap``.
    """
    later = OPENED + 1_000
    names = ["balance"] if last == "2.3" else ["gap", "balance"]
    records = [balance(1), None, *(balance(sequence, later) for sequence in (1, 2, 3))]
    changelog.write(*records[:known])
    async with client.stream(last=f"{later}.{last}") as stream:
        first = asyncio.create_task(stream.next())
        assert not (await asyncio.wait([first], timeout=0.1))[0]
        client.report_end(4)
        changelog.write(*records[known:])
        events = [await first] + [await stream.next() for _ in names[1:]]
        assert (names, f"{later}.3.4") == ([event[0] for event in events], events[-1][1])


async def test_a_copy_that_is_behind_the_client_repeats_no_erasure(
    client: Client, changelog: Changelog, step_seconds: Callable[[float], None]
) -> None:
    """The client has the erasure and two balances of the next account. The copy gets them while the stream is open."""
    step_seconds(0.01)
    changelog.write(balance(1))
    client.report_end(4)
    async with client.stream(last=f"{OPENED + 1}.2.3") as stream:
        await stream.heartbeat()
        changelog.write(None, *(balance(sequence, OPENED + 1) for sequence in (1, 2, 3)))
        assert 3 == await stream.sequence()


@pytest.mark.parametrize("end", [0, 1, 7])
async def test_a_client_of_a_topic_that_was_created_again_gets_the_next_balance(
    client: Client, changelog: Changelog, step_seconds: Callable[[float], None], end: int
) -> None:
    """The new topic ends before the offset that the client has. A copy without the account cannot say that nothing was
    missed.
    """
    step_seconds(0.01)
    last = f"{OPENED}.2.7"
    client.report_end(end)
    async with client.stream(last=last) as first:
        assert "gap" == (await first.next())[0]
        changelog.write(balance(1))
        async with client.stream(last=last) as second:
            await second.heartbeat()
            changelog.write(balance(3))
            assert [3, 3] == [await each.sequence() for each in (first, second)]


async def test_a_stream_ends_if_the_broker_does_not_report_the_end_of_the_changelog(
    client: Client, step_seconds: Callable[[float], None]
) -> None:
    """The copy may be behind the client. Another copy may know more."""
    step_seconds(0.01)
    async with client.stream(last=f"{OPENED}.1.0") as stream:
        with pytest.raises(AssertionError, match="the stream has ended"):
            await stream.next()


@pytest.mark.parametrize("last", [f"{OPENED}.1.0", f"{OPENED}.1"])
async def test_a_standby_behind_the_client_does_not_say_that_the_account_is_erased(last: str) -> None:
    """The client has the first balance of an account, and the standby does not have it yet.

    A client without an offset may have missed a revision. So it gets ``gap``.
    """
    async with connected(size=2, owner=1) as client:
        client.group.dead.add(client.group.instances[1].url)
        client.report_end(1)
        async with client.stream(last=last) as stream:
            client.changelog.write(balance(1), balance(2))
            if last == f"{OPENED}.1":
                assert "gap" == (await stream.next())[0]
            assert 2 == await stream.sequence()


async def test_a_client_gets_no_record_twice() -> None:
    """A record can come while the stream reads the store, and a store that is built again reads old records."""
    revisions = _Revisions(catalogue.stores(IDS)[0], EventId(OPENED, 4, 9), None)  # type: ignore[arg-type]  # no caller
    for offset in (9, 3):
        revisions.skip_to(offset)
    written = encoder(LOYALTY_BALANCES, IDS)(balance(1, OPENED + 1))
    records = [(4, None), (9, None), (10, None), (10, None), (12, written), (11, None)]
    found = [revisions.of(ChangelogRecord(offset, 0, CARD.encode(), value)) for offset, value in records]
    assert [None, None, "erased", None, "balance", None] == [event and event.name for event in found]


@pytest.mark.parametrize("last", ["", "x", "1", "1.2.3.4", "99999999999999999999.1", "-1.2"])
async def test_an_id_of_something_else_is_refused(client: Client, changelog: Changelog, last: str) -> None:
    changelog.write(balance(1))
    assert "invalid-parameters" == problem_type(await client.refusal(last=last), 422)


def test_ids_keep_their_text() -> None:
    for text in ("1.2.3", "1.2", "0.7.0"):
        assert text == str(EventId.parse(text))
