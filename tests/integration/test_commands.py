"""Commands to real API processes with a real broker. A stand-in for the loyalty query decides with the real account."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Message, murmur2

from api.client.clients import AsyncLoyaltyClient, LoyaltyClient
from api.client.errors import ProblemError
from api.client.models import Balance
from infra.local.broker import LocalBroker
from schemas import topics
from services import clock
from services.codecs.records import mark_of
from services.commands.identity import command_id, request_hash
from services.commands.log import CommandLog
from services.domain.events import Purchase
from services.messaging.administration import create_topics
from services.messaging.avro import decoder
from services.settings import Settings
from services.status import status_of
from tests.support.builders import IDS, problem_type
from tests.support.kafka import created_topics, headers_of, read_all, records_of
from tests.support.loyalty_query import Accounts, KafkaLoyaltyQuery
from tests.support.processes import ApiProcess, wait_until_shared
from tests.support.waiting import DEADLINE_SECONDS, POLL_SECONDS

CARD = "9265846829"
PATH = f"/v1/customers/{CARD}/redemptions"


@pytest.fixture
def accounts() -> Accounts:
    return Accounts()


@pytest.fixture
def decider(settings: Settings, accounts: Accounts, topics_created: list[str]) -> KafkaLoyaltyQuery:  # noqa: ARG001
    return KafkaLoyaltyQuery(settings, accounts)


@dataclass(frozen=True)
class Pair:
    """Two instances, and a decider that runs."""

    settings: Settings
    instances: list[ApiProcess]
    decider: KafkaLoyaltyQuery

    def earn(self, points: str, card: str) -> None:
        """Give a new customer these points, and wait until both instances share all partitions and serve the points."""
        earn(self.decider, points, card)
        wait_until_shared(self.instances)
        for each in self.instances:
            answer = each.http.get(f"/v1/customers/{card}/balance?minSequence=1&timeout=30")
            assert 200 == answer.status_code, answer.text


@pytest.fixture(scope="module")
def pair(settings_in: Callable[[Path], Settings], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair that tests share. Each test uses its own card, so their order does not matter."""
    folder = tmp_path_factory.mktemp("pair")
    settings = settings_in(folder)
    with created_topics(settings), ExitStack() as stack:
        instances = [stack.enter_context(instance_of(settings, folder / name)) for name in "ab"]
        for instance in instances:
            instance.wait_until_ready()
        yield Pair(settings, instances, stack.enter_context(KafkaLoyaltyQuery(settings, Accounts())))


def instance_of(settings: Settings, state_dir: Path) -> ApiProcess:
    return ApiProcess(settings.model_copy(update={"state_dir": state_dir}), state_dir.with_suffix(".log"))


@pytest.fixture
def start(settings: Settings, tmp_path: Path) -> Iterator[Callable[[str], ApiProcess]]:
    """Starts an instance with a state directory of this name."""
    with ExitStack() as stack:

        def start_one(name: str) -> ApiProcess:
            instance = stack.enter_context(instance_of(settings, tmp_path / name))
            instance.wait_until_ready()
            return instance

        yield start_one


def earn(decider: KafkaLoyaltyQuery, points: str, card: str = CARD) -> None:
    now = clock.now()
    decider.process(card, Purchase(now, f"I-{now}", Decimal(points) * 50))


def redeem(api: ApiProcess, key: str, points: str = "10.00", timeout: float = 30, card: str = CARD) -> httpx.Response:
    headers, path = {"Idempotency-Key": key}, f"/v1/customers/{card}/redemptions"
    return api.http.post(path, json={"points": points}, headers=headers, params={"timeout": timeout})


def ask(api: ApiProcess, method: str, path: str, key: str = "k") -> httpx.Response:
    return api.http.request(method, path, headers={"Idempotency-Key": key}, params={"timeout": 30})


def until(answer: Callable[[], httpx.Response], *statuses: int) -> httpx.Response:
    """Repeat a request after each Retry-After until the response has this status."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            found = answer()
        except httpx.TransportError:
            found = httpx.Response(503)
        if found.status_code in statuses:
            return found
        assert time.monotonic() < deadline, found.text
        assert found.status_code in {202, 404, 409, 502, 503, 504}, found.text
        time.sleep(POLL_SECONDS)


def redeem_with_the_clients(first: str, second: str) -> None:
    """A redemption and its end through two instances: the client reads its own writes, and its problems have names."""

    async def void(redemption: str) -> Balance:
        async with AsyncLoyaltyClient(second) as loyalty:
            assert "done" == (await loyalty.void(redemption)).status
            return await loyalty.balance(CARD)

    with LoyaltyClient(first) as loyalty:
        before = loyalty.balance(CARD)
        reservation = loyalty.redeem(CARD, Decimal("10.00"), idempotency_key="client")
        assert reservation == loyalty.redeem(CARD, Decimal("10.00"), idempotency_key="client")
        assert before.available - 10 == loyalty.balance(CARD).available
        with pytest.raises(ProblemError, match="insufficient-points"):
            loyalty.redeem(CARD, Decimal("9999.00"))
        assert reservation.redemption_id
        after = asyncio.run(void(reservation.redemption_id))
        assert (before.available, before.sequence + 3) == (after.available, after.sequence)


def test_every_instance_runs_a_command_exactly_once(pair: Pair) -> None:
    """Two instances give the same response and the new balance. Kafka has one mark and one command."""
    instances = pair.instances
    pair.earn("105.00", CARD)
    for number in range(8):
        first, second = instances[number % 2], instances[1 - number % 2]
        answer = redeem(first, f"k-{number}")
        assert 201 == answer.status_code, answer.text
        for api in instances:
            balance = api.balance(CARD).json()
            assert (f"{10 * (number + 1)}.00", answer.json()["AvailableLoyaltyPoints"]) == (
                balance["ReservedLoyaltyPoints"],
                balance["AvailableLoyaltyPoints"],
            )
        again = redeem(second, f"k-{number}")
        assert (answer.status_code, answer.content) == (again.status_code, again.content)
        assert "idempotency-key-reused" == problem_type(redeem(second, f"k-{number}", "10.01"), 422)
    assert "insufficient-points" == problem_type(redeem(instances[0], "k-9", "25.01"), 409)

    redemption = answer.json()["RedemptionID"]
    ended = [ask(api, "POST", f"/v1/redemptions/{redemption}/capture") for api in instances]
    assert [200, 200] == [each.status_code for each in ended]
    assert ended[0].content == ended[1].content
    assert "95.00" == instances[1].balance(CARD).json()["TotalLoyaltyPoints"]
    redeem_with_the_clients(*(api.url for api in instances))
    erased = [ask(api, "DELETE", f"/v1/customers/{CARD}") for api in instances]
    assert [200, 200] == [each.status_code for each in erased]
    assert [404, 404] == [api.balance(CARD).status_code for api in instances]

    decode = decoder(topics.LOYALTY_COMMANDS, IDS)
    every = read_all(pair.settings, topics.LOYALTY_COMMANDS)
    commands = [each for each in every if decode(each.value() or b"")["CustomerCardNo"] == CARD]
    identities = [command_id_of(message) for message in commands]
    assert 14 == len(commands) == len(set(identities))
    assert {CARD.encode()} == {message.key() for message in commands}
    assert {murmur2(CARD.encode(), 3)} == {message.partition() for message in commands}
    assert b"retail.loyalty.LoyaltyCommand" == headers_of(commands[0])["ce_type"]
    decisions = records_of(pair.settings, topics.LOYALTY_DECISIONS)
    marks = [each["CommandID"] for each in decisions if each["Sequence"] == 1]
    # A mark has no card. So the marks of the other tests must belong to their commands.
    assert {command_id_of(message) for message in every} == set(marks)
    assert sorted(identities) == sorted(each for each in marks if each in identities)


def command_id_of(message: Message) -> str:
    return headers_of(message)["ce_id"].decode()


def test_the_status_shows_the_instances_and_the_records_of_the_topics(pair: Pair) -> None:
    """Two real instances share the partitions. A part that does not run is named. The balances of Kafka are counted."""
    instances = pair.instances
    pair.earn("25.00", "9265846832")

    found = status_of(pair.settings, {"api": instances[0].url, "pipeline": "http://127.0.0.1:1"})

    assert [True, True, False] == [part.problem is None for part in found.parts]
    assert {each.url for each in instances} == {each["url"] for each in found.instances}
    active = [
        copy["partition"]
        for each in found.instances
        for copy in each["partitions"]
        if (copy["store"], copy["role"]) == ("decisions", "active")
    ]
    assert [0, 1, 2] == sorted(active)
    balances = len(read_all(pair.settings, topics.LOYALTY_BALANCES))
    assert balances > 0
    assert (balances, 0) == (found.records["loyalty-balances"], found.dead_letters)


def test_parallel_commands_never_overspend(pair: Pair) -> None:
    """60 parallel requests with 20 keys go through two instances. The points cover 7, so exactly 7 keys succeed."""
    instances, card = pair.instances, "9265846830"
    pair.earn("75.00", card)

    def patiently(number: int) -> httpx.Response:
        api = instances[number % 2]
        return until(lambda: redeem(api, f"k-{number % 20}", card=card), 201, 409)

    def final(number: int) -> httpx.Response:
        answer = patiently(number)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while answer.status_code == 409 and problem_type(answer, 409) == "command-in-flight":
            assert time.monotonic() < deadline
            answer = patiently(number)
        return answer

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(final, range(60)))

    outcomes = [{answers[n].content for n in range(60) if n % 20 == key} for key in range(20)]
    assert [1] * 20 == [len(each) for each in outcomes]
    assert 7 == sum(answers[key].status_code == 201 for key in range(20))
    assert ("75.00", "5.00") == tuple(
        instances[0].balance(card).json()[f"{part}LoyaltyPoints"] for part in ("Total", "Available")
    )


def test_a_slow_decision_can_be_polled(start: Callable[[str], ApiProcess], decider: KafkaLoyaltyQuery) -> None:
    """The response is 202 with Location, and 409 for a repeated request. After the decision they are 200 and 201."""
    earn(decider, "25.00")
    api = start("one")
    # A busy broker takes longer than a second to confirm the command, and without time the answer would be 503.
    answer = redeem(api, "slow", timeout=3)
    where = answer.headers["location"]
    assert (202, "pending") == (answer.status_code, answer.json()["Status"])
    assert 202 == api.http.get(where).status_code
    assert "command-in-flight" == problem_type(redeem(api, "slow"), 409)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(until, lambda: api.http.get(where, params={"timeout": 20}), 200)
        with decider:
            decided = waiting.result()
            assert "15.00" == api.balance(CARD).json()["AvailableLoyaltyPoints"]
            assert (201, decided.json()) == ((again := redeem(api, "slow")).status_code, again.json())


def test_a_command_survives_the_death_of_its_instance(
    start: Callable[[str], ApiProcess], decider: KafkaLoyaltyQuery, settings: Settings
) -> None:
    """An instance is killed between mark and command. A retry sends the command at once, and the next ones do not."""
    earn(decider, "25.00")
    identity = command_id("POST", PATH, "lost")
    asked: dict[str, Any] = {"points": 1000, "reason": "", "actor": ""}
    api = start("heir")
    log = CommandLog(settings)
    asyncio.run(log.mark(mark_of(identity, "reserve", request_hash(identity, asked))))
    log.close()
    until(lambda: api.http.get(f"/v1/commands/{identity}"), 202)

    assert 202 == redeem(api, "lost").status_code
    again = redeem(api, "lost")
    assert ("command-in-flight", "1") == (problem_type(again, 409), again.headers["retry-after"])
    # On a busy machine the decision can take so long that a later retry may send the command again.
    assert [identity] == [each["CommandID"] for each in records_of(settings, topics.LOYALTY_COMMANDS)]
    with decider:
        answer = until(lambda: redeem(api, "lost"), 201)
    assert identity == answer.json()["CommandID"]


def test_the_instance_that_takes_over_gives_the_same_response(pair: Pair, tmp_path: Path) -> None:
    """After the kill of a third instance another gives the same response, and no command runs twice."""
    card = "9265846831"
    pair.earn("100.00", card)
    second = pair.instances[0]
    with instance_of(pair.settings, tmp_path / "c") as first:
        first.wait_until_ready()
        wait_until_shared([*pair.instances, first])
        keys = [uuid.uuid4().hex for _ in range(6)]
        before = [redeem(first, key, card=card) for key in keys]
        assert [201] * 6 == [each.status_code for each in before]
        first.kill()
    after = [until(lambda key=key: redeem(second, key, card=card), 201) for key in keys]  # type: ignore[misc]
    assert [each.content for each in before] == [each.content for each in after]
    assert 201 == until(lambda: redeem(second, "another", card=card), 201).status_code
    assert "70.00" == second.balance(card).json()["ReservedLoyaltyPoints"]


def test_an_outage_of_kafka_leaves_no_partial_command(tmp_path: Path) -> None:
    """Without Kafka the response is 503 with Retry-After. After the outage the same request succeeds exactly once."""
    broker = LocalBroker(tmp_path / "broker")
    broker.start()
    settings = Settings(kafka_bootstrap_servers=broker.bootstrap_servers, state_dir=tmp_path / "state")
    try:
        create_topics(settings)
        with ApiProcess(settings, tmp_path / "api.log") as api:
            api.wait_until_ready()
            accounts = Accounts()
            earn(KafkaLoyaltyQuery(settings, accounts), "25.00")
            until(lambda: api.balance(CARD), 200)
            broker.stop()
            started = time.monotonic()
            away = redeem(api, "away", timeout=1)
            # The service takes 2 s at most. A busy machine takes longer.
            assert time.monotonic() - started < 4
            assert 503 == away.status_code
            # The problem depends on the length of the outage.
            assert problem_type(away, 503) in {"kafka-unavailable", "owner-in-doubt", "rebalancing"}
            assert int(away.headers["retry-after"]) >= 1

            broker.start()
            with KafkaLoyaltyQuery(settings, accounts):
                answer = until(lambda: redeem(api, "away"), 201)
                # The group may rebalance again, because its members return one by one.
                assert answer.content == until(lambda: redeem(api, "away"), 201).content
            assert "10.00" == until(lambda: api.balance(CARD), 200).json()["ReservedLoyaltyPoints"]
    finally:
        broker.stop()
