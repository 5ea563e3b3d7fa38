"""Commands reach their owner and take effect once: repetitions, outages, moved partitions. The test plays Kafka."""

import asyncio
import gc
import time
from functools import partial
from typing import Any

import pytest
from cachetools import TTLCache
from structlog.testing import capture_logs

from api.commands import service
from schemas.topics import LOYALTY_BALANCES
from services.commands.identity import request_hash
from services.commands.log import mark_of
from services.messaging.avro import Record
from services.messaging.publishing import PublishError
from tests.support.builders import CARD, problem_type
from tests.support.clusters import damage
from tests.support.loyalty_query import Scene, play


@pytest.fixture
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command wait less than a second longer than its client."""
    monkeypatch.setattr(service, "_GRACE_SECONDS", 0.3)


def test_a_repeated_request_is_executed_once() -> None:
    """A repeated command gets the same status and body, however its points are spelled. It is sent once."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        answers = [await scene.redeem(points) for points in ("10.00", "10.00", "10.0", "010")]
        refused = [await scene.redeem("100.00", "k-2") for _ in range(3)]

        assert [201] * 4 == [each.status_code for each in answers]
        assert [409] * 3 == [each.status_code for each in refused]
        for group in (answers, refused):
            assert all(each.content == group[0].content for each in group)
        assert 2 == len(scene.sent) == len(scene.marks)

    play(steps)


def test_the_same_key_with_another_body_is_refused() -> None:
    """422 while the first command is in flight and after it is decided. Under another path it is another command."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        assert 202 == (await scene.redeem("10.00", query="?timeout=0")).status_code
        assert "idempotency-key-reused" == problem_type(await scene.redeem("10.01"), 422)
        scene.decide()
        assert "idempotency-key-reused" == problem_type(await scene.redeem("10.01"), 422)
        scene.decides = True
        scene.earn("10.00", card="4711")
        other = await scene.ask("POST", "/v1/customers/4711/redemptions", {"points": "10.01"})
        assert "insufficient-points" == problem_type(other, 409)
        assert 2 == len(scene.sent)

    play(steps)


def test_after_the_timeout_the_client_is_told_where_to_ask() -> None:
    """202 pending with Location and Retry-After. A GET of Location is 202 until the decision, then 200."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        answer = await scene.redeem(query="?timeout=0.05")

        where = answer.headers["location"]
        assert (202, "pending", "1") == (answer.status_code, answer.json()["Status"], answer.headers["retry-after"])
        pending = await scene.ask("GET", where)
        assert (202, "pending") == (pending.status_code, pending.json()["Status"])
        waiting = asyncio.create_task(scene.ask("GET", f"{where}?timeout=30"))
        while not scene.group.instances[0].waiters._waiting:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0)
        scene.decide()
        decided = await asyncio.wait_for(waiting, 20)
        assert (200, "done") == (decided.status_code, decided.json()["Status"])
        assert decided.json() == (await scene.redeem()).json()
        assert "unknown-command" == problem_type(await scene.ask("GET", "/v1/commands/nothing"), 404)

    play(steps)


def test_a_repetition_in_flight_is_refused() -> None:
    """409 with Location while the command is in flight. Afterwards the same answer as the first request."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        first = asyncio.create_task(scene.redeem())
        await scene.until_sent(1)
        second = await scene.redeem()

        assert "command-in-flight" == problem_type(second, 409)
        assert "1" == second.headers["retry-after"]
        scene.decide()
        assert 201 == (await first).status_code
        assert second.headers["location"] == (await first).headers["location"]
        assert (await first).content == (await scene.redeem()).content
        assert 1 == len(scene.sent)

    play(steps)


@pytest.mark.usefixtures("_short_grace")
def test_a_command_that_no_copy_shows_has_no_location() -> None:
    """The copy lags behind the mark. A path that answers "unknown command" would make the client send a new one."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        (instance,) = scene.group.instances
        instance.command_log.on_mark = lambda _: None
        answers = [await scene.redeem(query="?timeout=0"), await scene.redeem()]
        assert "command-not-visible" == problem_type(answers[0], 503)
        assert "command-in-flight" == problem_type(answers[1], 409)
        for answer in answers:
            assert ("1", False) == (answer.headers["retry-after"], "location" in answer.headers)

        (mark,) = scene.marks
        scene.take_mark(mark)
        scene.decide()
        assert 201 == (await _redeem_when_possible(scene)).status_code
        assert 1 == len(scene.sent)

    play(steps)


def test_a_repetition_before_the_mark_has_no_location(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request waits for the owner of the balance, so no copy shows the command yet."""
    answers = asyncio.Event()
    balance = service.CommandService._balance

    async def slow(commands: service.CommandService, card: str, deadline: float) -> Any:
        await answers.wait()
        return await balance(commands, card, deadline)

    monkeypatch.setattr(service.CommandService, "_balance", slow)

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        first = asyncio.create_task(scene.redeem())
        await asyncio.sleep(0)
        second = await scene.redeem()
        assert "command-in-flight" == problem_type(second, 409)
        assert "location" not in second.headers
        answers.set()
        assert 201 == (await first).status_code

    play(steps)


def test_a_retry_sends_a_marked_command_that_was_never_sent() -> None:
    """The earlier owner died between mark and command. A retry sends the command at once, without a second mark."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        (command_id,) = {(await scene.redeem(query="?timeout=0")).json()["CommandID"]}
        request_hash = scene.marks[0]["RequestHash"]
        died = Scene()
        died.earn("25.00")
        died.take_mark(mark_of(command_id, "reserve", request_hash))

        async with died.group.running() as callers:
            died.http = callers.http
            died.group.instances[0].waiters.bind(asyncio.get_running_loop())
            assert 201 == (await died.redeem()).status_code
        assert ([], [command_id]) == (died.marks, [each["CommandID"] for each in died.sent])

    play(steps)


def test_a_retry_finds_a_command_of_an_earlier_release() -> None:
    """Its record has a hash without the Idempotency-Key. New records have another one, and the API shows neither."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        (identity,) = {(await scene.redeem(query="?timeout=0")).json()["CommandID"]}
        former_hash = request_hash(identity, {"points": 1000, "reason": "", "actor": ""})
        assert former_hash != scene.marks[0]["RequestHash"]
        entry = await scene.ask("GET", f"/v1/stores/decisions/keys/{identity}")
        assert ("pending", False) == (entry.json()["value"]["Status"], "RequestHash" in entry.json()["value"])

        scene.take_mark({**scene.marks[0], "RequestHash": former_hash})
        scene.decide()
        assert 201 == (await _redeem_when_possible(scene)).status_code
        assert "idempotency-key-reused" == problem_type(await scene.redeem("10.01"), 422)

    play(steps)


def test_an_instance_sends_an_undecided_command_again_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no loyalty query runs, retries do not fill the topic with copies. Two copies are decided once."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        assert 202 == (await scene.redeem(query="?timeout=0")).status_code
        assert "command-in-flight" == problem_type(await scene.redeem(query="?timeout=0"), 409)
        assert 1 == len(scene.sent)
        moment[0] += service.SEND_AGAIN_SECONDS + 1
        assert 202 == (await _redeem_when_possible(scene, "?timeout=0")).status_code
        assert "command-in-flight" == problem_type(await scene.redeem(query="?timeout=0"), 409)
        assert (1, 2) == (len(scene.marks), len(scene.sent))
        scene.decide()
        assert (201, "15.00") == ((again := await scene.redeem()).status_code, again.json()["AvailableLoyaltyPoints"])

    moment = [0.0]
    with monkeypatch.context() as patched:
        patched.setattr(service, "TTLCache", partial(TTLCache, timer=lambda: moment[0]))
        play(steps)


@pytest.mark.parametrize("lost", ["on_mark", "on_send"])
def test_an_outage_of_kafka_leaves_no_partial_command(lost: str) -> None:
    """503 with Retry-After, and the same request works as soon as Kafka is back, with one mark."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        log = scene.group.instances[0].command_log
        working = getattr(log, lost)

        def fail(_: Record) -> None:
            raise PublishError("no broker")

        setattr(log, lost, fail)
        answer = await scene.redeem()
        assert ("kafka-unavailable", "1") == (problem_type(answer, 503), answer.headers["retry-after"])
        setattr(log, lost, working)
        again = await _redeem_when_possible(scene)
        assert (201, "15.00") == (again.status_code, again.json()["AvailableLoyaltyPoints"])
        assert (1, 1) == (len(scene.marks), len(scene.sent))
        assert "25.00" == (await scene.balance())["TotalLoyaltyPoints"]

    play(steps)


@pytest.mark.usefixtures("_short_grace")
def test_a_failure_after_the_response_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The client has its 503, and the log has the reason in one line. The next attempt works."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        log = scene.group.instances[0].command_log
        working, kafka_fails = log.mark, asyncio.Event()

        async def hang(_: Record) -> None:
            await kafka_fails.wait()
            raise PublishError("no broker")

        setattr(log, "mark", hang)  # noqa: B010 - mypy allows no other method
        assert "kafka-unavailable" == problem_type(await scene.redeem(query="?timeout=0"), 503)
        setattr(log, "mark", working)  # noqa: B010
        kafka_fails.set()
        again = await _redeem_when_possible(scene)
        assert 201 == again.status_code

    with capture_logs() as logs:
        play(steps)
        gc.collect()
    assert ["no broker"] == [each["error"] for each in logs if each["log_level"] == "warning"]
    assert [] == [record.getMessage() for record in caplog.records if record.name == "asyncio"]


@pytest.mark.usefixtures("_short_grace")
@pytest.mark.parametrize("lost", ["mark", "send"])
def test_a_response_does_not_wait_for_kafka_longer_than_the_client(lost: str) -> None:
    """503 at most a second after the timeout. Kafka takes the records later, and the command is executed once."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        log = scene.group.instances[0].command_log
        working, kafka_returns = getattr(log, lost), asyncio.Event()

        async def hang(record: Record) -> None:
            await kafka_returns.wait()
            await working(record)

        setattr(log, lost, hang)
        started = time.monotonic()
        answer = await scene.redeem(query="?timeout=0.2")
        assert time.monotonic() - started < 4  # The service takes 0.5 s. A busy machine takes longer.
        assert ("kafka-unavailable", "1") == (problem_type(answer, 503), answer.headers["retry-after"])
        again = await scene.redeem()
        assert ("command-in-flight", "1") == (problem_type(again, 409), again.headers["retry-after"])

        kafka_returns.set()
        await scene.until_sent(1)
        again = await _redeem_when_possible(scene)
        assert (201, "15.00") == (again.status_code, again.json()["AvailableLoyaltyPoints"])
        assert (1, 1) == (len(scene.marks), len(scene.sent))

    play(steps)


@pytest.mark.usefixtures("_short_grace")
def test_done_means_visible() -> None:
    """The status is 202 until the balance shows the decision, then 201."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        (instance,) = scene.group.instances
        held_back: list[tuple[Any, ...]] = []
        write = instance.write

        def without_balances(*record: Any) -> None:
            held_back.append(record) if record[0] == LOYALTY_BALANCES else write(*record)

        instance.write = without_balances  # type: ignore[method-assign]
        answer = await scene.redeem(query="?timeout=0.1")
        assert (202, "done") == (answer.status_code, answer.json()["Status"])
        assert 202 == (await scene.ask("GET", answer.headers["location"])).status_code
        for record in held_back:
            write(*record)
        assert 200 == (await scene.ask("GET", answer.headers["location"])).status_code
        assert 201 == (await scene.redeem()).status_code

    play(steps)


async def with_standbys(scene: Scene) -> tuple[int, str]:
    """Two instances with a standby of each partition. Returns the number of the owner of the balance, and a key whose
    command belongs to the other instance, and is decided.
    """
    scene.group.share(lambda place: place[1] % 2, lambda place: (place[1] + 1) % 2)
    scene.earn("25.00")
    stores = scene.group.instances[0].stores
    owner = stores["customer-balances"].partition_of(CARD.encode()) % 2
    for key in map(str, range(20)):
        decided = (await scene.redeem("0.01", key)).json()
        if stores["decisions"].partition_of(decided["CommandID"].encode()) % 2 != owner:
            return owner, key
    raise AssertionError("all keys belong to one instance")


@pytest.mark.usefixtures("_short_grace")
def test_a_standby_does_not_prove_that_the_next_read_shows_a_decision() -> None:
    """202 while the owner of the balance does not answer. It may lag, and it answers the next read."""

    async def steps(scene: Scene) -> None:
        owner, key = await with_standbys(scene)
        scene.group.mute.add(scene.group.instances[owner].url)
        answer = await scene.redeem("0.01", key, "?timeout=0.1", number=1 - owner)
        assert (202, "done") == (answer.status_code, answer.json()["Status"])
        scene.group.mute.clear()
        assert 201 == (await scene.redeem("0.01", key, number=1 - owner)).status_code

    play(steps, size=2)


def test_a_standby_does_not_prove_that_something_is_unknown() -> None:
    """503 for a command that only the owner may know, and later 404. A command for an unknown card is sent."""

    async def steps(scene: Scene) -> None:
        owner, _ = await with_standbys(scene)
        first, other = scene.group.instances[owner].stores, 1 - owner
        command = next(each for each in "abcdefgh" if first["decisions"].partition_of(each.encode()) % 2 == owner)
        card = next(card for card in "abcdefgh" if first["customer-balances"].partition_of(card.encode()) % 2 == owner)
        sent = len(scene.sent)

        scene.group.mute.add(scene.group.instances[owner].url)
        assert "rebalancing" == problem_type(await scene.ask("GET", f"/v1/commands/{command}", number=other), 503)
        path = f"/v1/customers/{card}/redemptions"
        answers = [await scene.ask("POST", path, {"points": "1.00"}, key, other) for key in "abcdefgh"]
        assert {409, 502, 504} >= {each.status_code for each in answers}  # refused by the query, or not the owner
        assert len(scene.sent) > sent

        scene.group.mute.clear()
        scene.group.instances[other].reports.note(scene.group.instances[owner].local.report())
        answer = await scene.ask("GET", f"/v1/commands/{command}", number=other)
        assert "unknown-command" == problem_type(answer, 404)

    play(steps, size=2)


def test_a_command_whose_partition_moves_meanwhile_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """503, which clients repeat. Only a peer gets 421, because it finds the owner again."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        membership = scene.group.instances[0].membership

        async def moves(*_: object) -> None:
            membership.owned = frozenset()

        monkeypatch.setattr(service.CommandService, "_require_customer", moves)
        answer = await scene.redeem()
        assert ("rebalancing", "1") == (problem_type(answer, 503), answer.headers["retry-after"])
        assert [] == scene.sent

    play(steps)


@pytest.mark.usefixtures("_short_grace")
def test_the_end_of_the_process_sends_commands_that_are_marked() -> None:
    """The mark is written, and Kafka is slow. The end waits for the command."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        (instance,) = scene.group.instances
        send, may_send = instance.command_log.send, asyncio.Event()

        async def slow(command: Record) -> None:
            await may_send.wait()
            await send(command)

        instance.command_log.send = slow  # type: ignore[method-assign]
        assert "kafka-unavailable" == problem_type(await scene.redeem(query="?timeout=0"), 503)
        closing = asyncio.create_task(instance.app.state.dependencies.commands.close())
        done, _ = await asyncio.wait([closing], timeout=0.05)
        assert (set(), []) == (done, scene.sent)
        may_send.set()
        await closing
        assert 1 == len(scene.sent) == len(scene.marks)

    play(steps)


def test_a_suspect_is_asked_for_a_report_before_it_gets_a_command() -> None:
    """A dead owner would cost the whole time of the client."""

    async def steps(scene: Scene) -> None:
        owner, key = await with_standbys(scene)
        dead, asking = scene.group.instances[1 - owner], scene.group.instances[owner]
        scene.group.mute.add(dead.url)
        asking.reports.suspect(dead.url, "it does not answer")
        scene.group.sent.clear()
        assert "owner-unreachable" == problem_type(await scene.redeem("0.01", key, number=owner), 502)
        assert {("GET", "/v1/instances/local")} == {
            (each.method, each.url.path) for each in scene.group.sent if str(each.url).startswith(dead.url)
        }

    play(steps, size=2)


def test_every_instance_accepts_every_command() -> None:
    """The owner of the command's record sends it. Each instance gives the same answer."""

    async def steps(scene: Scene) -> None:
        scene.earn("100.00")
        for key in ("a", "b", "c", "d"):
            answers = [await scene.redeem(key=key, number=number) for number in range(3)]
            assert [201] * 3 == [each.status_code for each in answers]
            assert all(each.content == answers[0].content for each in answers)
            assert all(each.headers["location"] == answers[0].headers["location"] for each in answers)
            redemption = answers[0].json()["RedemptionID"]
            found = [await scene.ask("GET", f"/v1/commands/{redemption}", number=number) for number in range(3)]
            assert all(each.json() == answers[0].json() for each in found)
            path = f"/v1/redemptions/{redemption}/capture"
            assert [200] * 3 == [(await scene.ask("POST", path, number=number)).status_code for number in range(3)]
        assert ["60.00"] * 3 == [(await scene.balance(number=number))["TotalLoyaltyPoints"] for number in range(3)]
        assert 8 == len(scene.sent)
        erased = [await scene.ask("DELETE", f"/v1/customers/{CARD}", number=number) for number in range(3)]
        assert [200] * 3 == [each.status_code for each in erased]

    play(steps, size=3)


def test_concurrent_repetitions_send_one_command() -> None:
    """Thirty equal requests at the same time send one command. Each gets 409 in flight or the decision."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        answers = await asyncio.gather(*(scene.redeem(number=number % 3) for number in range(30)))

        assert {201, 409} >= {each.status_code for each in answers}
        assert 1 == len({each.content for each in answers if each.status_code == 201})
        assert {"command-in-flight"} >= {problem_type(each, 409) for each in answers if each.status_code == 409}
        assert 1 == len(scene.sent) == len(scene.marks)

    play(steps, size=3)


def test_no_standby_replaces_the_owner() -> None:
    """502 if the owner does not respond, and 503 if it has no lease. The command is not sent."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        store = scene.group.instances[0].stores["decisions"]
        known = {key: await scene.redeem("0.01", key) for key in map(str, range(20))}
        places = {key: store.partition_of(each.json()["CommandID"].encode()) for key, each in known.items()}
        mine = next(key for key, place in places.items() if place == 0)
        others = next(key for key, place in places.items() if place == 1)
        sent = len(scene.sent)

        scene.group.dead.add(scene.group.instances[1].url)
        assert "owner-unreachable" == problem_type(await scene.redeem("0.01", others), 502)
        scene.group.instances[0].membership.lease_holds = False
        in_doubt = await scene.redeem("0.01", mine)
        assert "owner-in-doubt" == problem_type(in_doubt, 503)
        assert "1" == in_doubt.headers["retry-after"]
        assert sent == len(scene.sent)

    play(steps, size=3)


def test_a_partition_that_has_moved_is_found() -> None:
    """The former owner refuses, the group is asked again, and the new owner executes the command."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        first, last = scene.group.instances[0], scene.group.instances[2]
        stale = first.membership.view

        scene.group.share(lambda place: 2 if place[1] == 1 else place[1])
        fresh, first.membership.view = first.membership.view, stale

        def refresh() -> None:
            first.membership.view = fresh

        first.membership.refresh = refresh  # type: ignore[method-assign]
        for key in "abcdef":
            assert 201 == (await scene.redeem("0.01", key)).status_code
        assert last.command_log.commands

    play(steps, size=3)


def test_an_instance_limits_its_commands_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 too-many-commands beyond the limit. The slots are free again after the decisions."""
    monkeypatch.setattr(service, "MOST_IN_FLIGHT", 3)

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        waiting = [asyncio.create_task(scene.redeem("1", str(number))) for number in range(3)]
        await scene.until_sent(3)
        answer = await scene.redeem("1", "3")
        assert ("too-many-commands", "1") == (problem_type(answer, 503), answer.headers["retry-after"])
        scene.decides = True
        scene.decide()
        assert [201] * 3 == [(await each).status_code for each in waiting]
        assert 201 == (await scene.redeem("1", "3")).status_code

    play(steps)


def test_command_slots_are_released_after_store_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of decisions fails while commands wait: 503. When the store is repaired, their slots are free."""
    monkeypatch.setattr(service, "MOST_IN_FLIGHT", 3)

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        (instance,) = scene.group.instances
        tasks = instance.stores["decisions"].tasks.values()
        waiting = [asyncio.create_task(scene.redeem("1", str(number), "?timeout=0.1")) for number in range(3)]
        await scene.until_sent(3)
        whole = [dict(vars(task.store)) for task in tasks]
        for task in tasks:
            damage(task)
        assert ["command-not-visible"] * 3 == [problem_type(await each, 503) for each in waiting]
        assert "restoring" == problem_type(await scene.redeem("1", "0"), 503)

        for task, state in zip(tasks, whole, strict=True):  # as the rebuild does
            vars(task.store).clear()
            vars(task.store).update(state)
        instance.waiters.notify_all()
        scene.decides = True
        scene.decide()
        assert [201] * 3 == [(await scene.redeem("1", str(number))).status_code for number in range(3)]
        assert 201 == (await scene.redeem("1", "3")).status_code

    play(steps)


def test_a_damaged_store_of_decisions_is_a_problem() -> None:
    """A read of a command from a damaged copy gets 503 and not 500 while no other copy exists."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        where = (await scene.redeem()).headers["location"]
        for task in scene.group.instances[0].stores["decisions"].tasks.values():
            damage(task)
        for _ in range(2):
            assert "restoring" == problem_type(await scene.ask("GET", where), 503)
            assert "restoring" == problem_type(await scene.redeem(), 503)

    play(steps)


async def _redeem_when_possible(scene: Scene, query: str = "") -> Any:
    """Repeat a redemption until no earlier request for it is in flight."""
    for _ in range(3_000):
        if (answer := await scene.redeem(query=query)).status_code != 409:
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError(answer.text)
