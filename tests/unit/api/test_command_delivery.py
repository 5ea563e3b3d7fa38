"""A command takes effect once: its repetitions, and outages of Kafka. The test plays Kafka."""

import asyncio
import gc
import time
from functools import partial
from typing import Any

import pytest
from cachetools import TTLCache
from structlog.testing import capture_logs

from api.commands import preconditions, service
from schemas.topics import LOYALTY_BALANCES
from services.clock import boot_seconds, now
from services.commands.identity import request_hash
from services.messaging.avro import Record
from services.messaging.publishing import PublishError
from tests.support.builders import CARD, problem_type
from tests.support.clusters import FakeCommandLog, damage, repair
from tests.support.loyalty_query import Scene, play
from tests.unit.api.three_instances import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def _redeem_when_possible(scene: Scene, query: str = "") -> Any:
    """Repeat a redemption until no earlier request for it is in flight."""
    for _ in range(3_000):
        if (answer := await scene.redeem(query=query)).status_code != 409:
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError(answer.text)


async def _other_tasks() -> None:
    """Let the task run that ends the claim of an answered request."""
    for _ in range(10):
        await asyncio.sleep(0)


def _hold_back(log: FakeCommandLog, operation: str) -> asyncio.Event:
    """Let Kafka answer this operation of the log only after the event."""
    working, kafka_returns = getattr(log, operation), asyncio.Event()

    async def hang(record: Record) -> None:
        await kafka_returns.wait()
        await working(record)

    setattr(log, operation, hang)
    return kafka_returns


async def test_a_repeated_request_is_executed_once(scene: Scene) -> None:
    """A repeated command gets the same status and body, however its points are spelled. It is sent once."""
    scene.earn("25.00")
    answers = [await scene.redeem(points) for points in ("10.00", "10.00", "10.0", "010")]
    refused = [await scene.redeem("100.00", "k-2") for _ in range(3)]

    assert [201] * 4 == [each.status_code for each in answers]
    assert [409] * 3 == [each.status_code for each in refused]
    for group in (answers, refused):
        assert all(each.content == group[0].content for each in group)
    assert 2 == len(scene.sent) == len(scene.marks)


async def test_the_same_key_with_another_body_is_refused(scene: Scene) -> None:
    """422 while the first command is in flight and after it is decided. Under another path it is another command."""
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


async def test_after_the_timeout_the_response_names_the_location(scene: Scene) -> None:
    """202 pending with Location and Retry-After. A GET of Location is 202 until the decision, then 200."""
    scene.earn("25.00")
    scene.decides = False
    answer = await scene.redeem(query="?timeout=0.05")

    where = answer.headers["location"]
    assert (202, "pending", "1") == (answer.status_code, answer.json()["Status"], answer.headers["retry-after"])
    pending = await scene.ask("GET", where)
    assert (202, "pending") == (pending.status_code, pending.json()["Status"])
    waiting = asyncio.create_task(scene.ask("GET", f"{where}?timeout=30"))
    await until(lambda: scene.group.instances[0].waiters._waiting)
    scene.decide()
    decided = await asyncio.wait_for(waiting, 20)
    assert (200, "done") == (decided.status_code, decided.json()["Status"])
    assert decided.json() == (await scene.redeem()).json()
    assert "unknown-command" == problem_type(await scene.ask("GET", "/v1/commands/nothing"), 404)


async def test_a_repetition_in_flight_is_refused(scene: Scene) -> None:
    """409 with Location while the command is in flight. Afterwards the same answer as the first request."""
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


@pytest.mark.parametrize("scene", [3], indirect=True)
async def test_concurrent_repetitions_send_one_command(scene: Scene) -> None:
    """Thirty equal requests at the same time send one command. Each gets 409 in flight or the decision."""
    scene.earn("25.00")
    answers = await asyncio.gather(*(scene.redeem(number=number % 3) for number in range(30)))

    assert {201, 409} >= {each.status_code for each in answers}
    assert 1 == len({each.content for each in answers if each.status_code == 201})
    assert {"command-in-flight"} >= {problem_type(each, 409) for each in answers if each.status_code == 409}
    assert 1 == len(scene.sent) == len(scene.marks)


@pytest.mark.usefixtures("_short_grace")
async def test_a_command_that_no_copy_shows_has_no_location(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy lags behind the mark. A path that answers "unknown command" would make the client send a new one.

    The command stays in flight until the copy shows the mark, however long this takes.
    """
    monkeypatch.setattr(service, "SEND_AGAIN_SECONDS", 0)
    scene.earn("25.00")
    scene.decides = False
    (instance,) = scene.group.instances
    instance.command_log.on_mark = lambda _: None
    answers = [await scene.redeem(query="?timeout=0")]
    await _other_tasks()
    answers.append(await scene.redeem())
    assert "command-not-visible" == problem_type(answers[0], 503)
    assert "command-in-flight" == problem_type(answers[1], 409)
    for answer in answers:
        assert ("1", False) == (answer.headers["retry-after"], "location" in answer.headers)

    (mark,) = scene.marks
    scene.take_mark(mark)
    scene.decide()
    assert 201 == (await _redeem_when_possible(scene)).status_code
    assert 1 == len(scene.sent)


@pytest.mark.usefixtures("_long_grace")
async def test_a_command_waits_for_its_mark_longer_than_for_its_decision(scene: Scene) -> None:
    """The copy shows the mark after the timeout of the client. 202 names the path, because a read finds the mark."""
    scene.earn("25.00")
    scene.decides = False
    scene.group.instances[0].command_log.on_mark = lambda _: None
    waiting = asyncio.create_task(scene.redeem(query="?timeout=0"))
    await scene.until_sent(1)
    await _other_tasks()
    scene.take_mark(*scene.marks)
    assert (202, "pending") == ((answer := await waiting).status_code, answer.json()["Status"])


async def test_a_repetition_before_the_mark_has_no_location(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request waits for the owner of the balance, so no copy shows the command yet."""
    answers = asyncio.Event()
    balance = preconditions.Preconditions._balance

    async def slow(self: preconditions.Preconditions, card: str, deadline: float) -> Any:
        await answers.wait()
        return await balance(self, card, deadline)

    monkeypatch.setattr(preconditions.Preconditions, "_balance", slow)
    scene.earn("25.00")
    first = asyncio.create_task(scene.redeem())
    await asyncio.sleep(0)
    second = await scene.redeem()
    assert "command-in-flight" == problem_type(second, 409)
    assert "location" not in second.headers
    answers.set()
    assert 201 == (await first).status_code


def test_a_retry_sends_a_marked_command_that_was_never_sent() -> None:
    """The earlier owner died between mark and command. A retry sends the command at once, without a second mark.

    It may have been sent before. So its decision counts, also if the card has no account any more.
    """

    async def die(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        answer = await scene.redeem(query="?timeout=0")
        assert answer.json()["CommandID"] == scene.marks[0]["CommandID"]

    (mark,) = play(die).marks

    async def retry(scene: Scene) -> None:
        scene.earn("25.00")
        scene.take_mark(mark)
        assert 201 == (await scene.redeem()).status_code
        assert ([], [mark["CommandID"]]) == (scene.marks, [each["CommandID"] for each in scene.sent])

    play(retry)

    async def retry_without_account(scene: Scene) -> None:
        scene.take_mark(mark)
        assert "insufficient-points" == problem_type(await scene.redeem(), 409)

    play(retry_without_account)


async def test_a_retry_finds_a_command_of_an_earlier_release(scene: Scene) -> None:
    """Its record has a hash without the Idempotency-Key. New records have another one, and the API shows neither."""
    scene.earn("25.00")
    scene.decides = False
    identity = (await scene.redeem(query="?timeout=0")).json()["CommandID"]
    former_hash = request_hash(identity, {"points": 1000, "reason": "", "actor": ""})
    assert former_hash != scene.marks[0]["RequestHash"]
    entry = await scene.ask("GET", f"/v1/stores/decisions/keys/{identity}")
    assert ("pending", False) == (entry.json()["value"]["Status"], "RequestHash" in entry.json()["value"])

    scene.take_mark({**scene.marks[0], "RequestHash": former_hash})
    scene.decide()
    assert 201 == (await _redeem_when_possible(scene)).status_code
    assert "idempotency-key-reused" == problem_type(await scene.redeem("10.01"), 422)


async def test_a_command_stays_in_flight_while_the_copy_of_the_owner_is_restored(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy can be ready before it has the mark. A second mark could then hide the decision."""
    monkeypatch.setattr(service, "_RESTORE_PAUSE_SECONDS", 0)
    scene.earn("25.00")
    scene.decides = False
    (instance,) = scene.group.instances
    instance.command_log.on_mark = lambda _: None
    kafka_returns = _hold_back(instance.command_log, "mark")
    first = asyncio.create_task(scene.redeem(query="?timeout=0"))
    await _other_tasks()
    tasks = instance.stores["decisions"].tasks.values()
    for task in tasks:
        damage(task)
    kafka_returns.set()
    assert "command-not-visible" == problem_type(await first, 503)
    await _other_tasks()
    for task in tasks:
        repair(task)
    assert "command-in-flight" == problem_type(await scene.redeem(), 409)
    scene.take_mark(*scene.marks)
    scene.decide()
    assert 201 == (await _redeem_when_possible(scene)).status_code
    assert (1, 1) == (len(scene.marks), len(scene.sent))


@pytest.mark.usefixtures("_short_grace")
@pytest.mark.parametrize("scene", [2], indirect=True)
async def test_a_command_is_not_in_flight_any_more_after_its_partition_has_moved(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy never shows the mark. A claim that stays would refuse repetitions after the partition comes back."""
    monkeypatch.setattr(service, "_RESTORE_PAUSE_SECONDS", 0)
    scene.group.share(lambda _: 0)
    scene.earn("25.00")
    scene.decides = False
    instance = scene.group.instances[0]
    instance.command_log.on_mark = lambda _: None
    assert "command-not-visible" == problem_type(await scene.redeem(query="?timeout=0"), 503)
    scene.group.share(lambda _: 1)
    instance.waiters.notify_all()
    await _other_tasks()
    scene.group.share(lambda _: 0)
    instance.command_log.on_mark = scene.take_mark
    scene.decides = True
    assert 201 == (await scene.redeem()).status_code


def test_an_instance_sends_an_undecided_command_again_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no loyalty query runs, retries do not fill the topic with copies. Two copies are decided once."""

    async def steps(scene: Scene) -> None:
        scene.earn("25.00")
        scene.decides = False
        assert 202 == (await scene.redeem(query="?timeout=0")).status_code
        await _other_tasks()
        assert "command-in-flight" == problem_type(await scene.redeem(query="?timeout=0"), 409)
        assert 1 == len(scene.sent)
        moment[0] += service.SEND_AGAIN_SECONDS + 1
        assert 202 == (await _redeem_when_possible(scene, "?timeout=0")).status_code
        await _other_tasks()
        assert "command-in-flight" == problem_type(await scene.redeem(query="?timeout=0"), 409)
        assert (1, 2) == (len(scene.marks), len(scene.sent))
        scene.decide()
        assert (201, "15.00") == ((again := await scene.redeem()).status_code, again.json()["AvailableLoyaltyPoints"])

    moment = [0.0]
    with monkeypatch.context() as patched:
        patched.setattr(service, "TTLCache", partial(TTLCache, timer=lambda: moment[0]))
        play(steps)


@pytest.mark.usefixtures("_short_grace")
async def test_a_command_is_done_when_the_balance_shows_it(scene: Scene) -> None:
    """The status is 202 until the balance shows the decision, then 201."""
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


@pytest.mark.usefixtures("_short_grace")
async def test_a_new_account_that_no_balance_shows_yet_is_not_erased(scene: Scene) -> None:
    """The pipeline stopped for an hour after it wrote the decision. An erasure would replace a decision of this age."""
    (instance,) = scene.group.instances
    for task in instance.stores["customer-balances"].tasks.values():
        task.progress.end_asked_at = boot_seconds() + 60
    write = instance.write
    instance.write = lambda *record: None if record[0] == LOYALTY_BALANCES else write(*record)  # type: ignore[method-assign]
    scene.now = now() - 3_600_000
    body = {"points": "5.00", "reason": "goodwill", "actor": "clerk 7"}
    for _ in range(2):
        answer = await scene.ask("POST", f"/v1/customers/{CARD}/adjustments?timeout=0", body)
        assert (202, "done") == (answer.status_code, answer.json()["Status"])
    assert 202 == (await scene.ask("GET", answer.headers["location"])).status_code


async def test_a_command_whose_customer_is_erased_before_the_balance_shows_it_is_not_done(scene: Scene) -> None:
    """Its balance never comes. The wait ends with the erasure and with 202. Then the command is unknown, and a
    repetition does not open a new account.
    """
    scene.now = now() - 3_600_000
    scene.earn("25.00")
    (instance,) = scene.group.instances
    write = instance.write
    instance.write = lambda *record: None if record[0] == LOYALTY_BALANCES and record[2] else write(*record)  # type: ignore[method-assign]
    waiting = asyncio.create_task(scene.redeem(query="?timeout=30"))
    await until(lambda: CARD.encode() in instance.waiters._waiting)
    for task in instance.stores["customer-balances"].tasks.values():
        task.progress.end_asked_at = boot_seconds() + 60
    assert 200 == (await scene.ask("DELETE", f"/v1/customers/{CARD}")).status_code
    answer = await asyncio.wait_for(waiting, 20)
    assert (202, "done") == (answer.status_code, answer.json()["Status"])
    assert "unknown-command" == problem_type(await scene.ask("GET", answer.headers["location"]), 404)
    assert "command-erased" == problem_type(await scene.redeem(), 409)


@pytest.mark.parametrize("lost", ["on_mark", "on_send"])
async def test_an_outage_of_kafka_leaves_no_partial_command(scene: Scene, lost: str) -> None:
    """503 with Retry-After, and the same request works as soon as Kafka is back, with one mark."""
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
async def test_a_response_does_not_wait_for_kafka_longer_than_the_client(scene: Scene, lost: str) -> None:
    """503 at most a second after the timeout. Kafka takes the records later, and the command is executed once."""
    scene.earn("25.00")
    kafka_returns = _hold_back(scene.group.instances[0].command_log, lost)
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


@pytest.mark.usefixtures("_short_grace")
async def test_the_end_of_the_process_sends_commands_that_are_marked(scene: Scene) -> None:
    """The mark is written, and Kafka is slow. The end waits for the command, and then closes the log of commands."""
    scene.earn("25.00")
    (instance,) = scene.group.instances
    sent_before_close: list[int] = []
    instance.command_log.close = lambda: sent_before_close.append(len(scene.sent))  # type: ignore[method-assign]
    kafka_returns = _hold_back(instance.command_log, "send")
    assert "kafka-unavailable" == problem_type(await scene.redeem(query="?timeout=0"), 503)
    closing = asyncio.create_task(instance.app.state.dependencies.commands.close())
    done, _ = await asyncio.wait([closing], timeout=0.05)
    assert (set(), []) == (done, scene.sent)
    kafka_returns.set()
    await closing
    assert ([1], 1) == (sent_before_close, len(scene.marks))
