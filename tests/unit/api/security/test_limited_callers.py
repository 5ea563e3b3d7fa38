"""Callers that ask too often, wait too much, or guess keys."""

import asyncio

import httpx
import pytest
from fastapi.testclient import TestClient

from services.api_keys.keys import Scope
from tests.support.builders import balance, problem_type
from tests.support.clusters import Callers
from tests.support.secured import BALANCE, SecuredGroup, bearer, run_pair


def test_guesses_of_an_address_are_slowed_and_disturb_no_known_caller(secured: SecuredGroup) -> None:
    """After some wrong keys the address gets 429, also for a right key that was never used. Used credentials work."""
    instance = secured.instance(failures="5/hour")
    instance.write(*balance("A", "1.00"))
    used, fresh = secured.key(Scope.BALANCE_READ).text, secured.key(Scope.BALANCE_READ).text
    token, fresh_token = (secured.issuer.token(sub=name) for name in ("anna", "berta"))
    guesses = [used[:-6] + f"{number:06}" for number in range(4)] + [token[:-6] + f"{number:06}" for number in range(4)]
    with TestClient(instance.app) as guesser, TestClient(instance.app, client=("10.0.0.9", 1)) as other:

        def statuses(client: TestClient, *texts: str) -> list[int]:
            return [client.get(BALANCE, headers=bearer(text)).status_code for text in texts]

        assert [200, 200] == statuses(guesser, used, token)
        assert [401] * 5 + [429] * 3 == statuses(guesser, *guesses)
        assert [200, 200, 429, 429] == statuses(guesser, used, token, fresh, fresh_token)
        refused = guesser.get(BALANCE, headers=bearer(fresh))
        assert int(refused.headers["retry-after"]) > 60
        assert 401 == guesser.get(BALANCE).status_code
        assert [200, 200, 401] == statuses(other, fresh, fresh_token, guesses[0])


def test_credentials_that_cannot_be_checked_are_no_guess(secured: SecuredGroup) -> None:
    """Otherwise an instance that has not read the keys yet would lock out all callers of a proxy."""
    key = bearer(secured.key(Scope.BALANCE_READ).text)
    task = secured.keys.remove(0)
    assert task
    with TestClient(secured.instance(failures="1/hour").app) as client:
        assert [503, 503] == [client.get(BALANCE, headers=key).status_code for _ in range(2)]
        secured.keys.add(task)
        assert 404 == client.get(BALANCE, headers=key).status_code


def test_the_flood_of_one_caller_leaves_another_alone(secured: SecuredGroup) -> None:
    """The flood gets 429 with Retry-After, and forwarded requests are counted once. The other caller gets only 200."""

    async def ask(callers: Callers) -> None:
        flood, other = (bearer(secured.issuer.token(sub=name)) for name in ("flood", "other"))
        url = callers.group.instances[0].url

        async def read(card: str, headers: dict[str, str]) -> httpx.Response:
            return await callers.http.get(f"{url}/v1/customers/{card}/balance", headers=headers)

        answers = await asyncio.gather(*(read("ABC"[number % 3], flood) for number in range(60)))
        calm = [await read(card, other) for card in "ABCABC"]

        statuses = [each.status_code for each in answers]
        assert {200, 429} == set(statuses)
        assert 12 == statuses.count(200)
        assert all(1 <= int(each.headers["retry-after"]) <= 61 for each in answers if each.status_code == 429)
        assert {200} == {each.status_code for each in calm}

    run_pair(secured, ask, rate="12/minute")


@pytest.mark.parametrize(("path", "expected"), [(BALANCE, [422, 422, 429]), ("/v1/instances", [403, 403, 429])])
def test_an_unknown_parameter_does_not_avoid_the_checks(secured: SecuredGroup, path: str, expected: list[int]) -> None:
    """A request with it counts, and a caller without the right gets 403."""
    instance = secured.instance(rate="2/minute")
    key = secured.key(Scope.BALANCE_READ).text
    with TestClient(instance.app) as client:
        assert expected == [client.get(f"{path}?x=1", headers=bearer(key)).status_code for _ in range(3)]


def test_a_request_with_a_body_counts_once(secured: SecuredGroup) -> None:
    """Its rights are checked before its body is read, and again before its route is called."""
    key = bearer(secured.key(Scope.BALANCE_READ).text)
    with TestClient(secured.instance(rate="2/minute").app) as client:
        answers = [client.post("/v1/simulate", json={"TotalAmount": 1.0}, headers=key) for _ in range(3)]
    assert [200, 200, 429] == [each.status_code for each in answers]


def test_long_polls_of_one_caller_are_bounded(secured: SecuredGroup) -> None:
    """Two polls wait, the third is refused at once, and another caller can still read.

    After the polls, new ones are accepted.
    """

    async def ask(callers: Callers) -> None:
        waits, other = (bearer(secured.issuer.token(sub=name)) for name in ("waits", "other"))
        answer = await callers.http.get(f"{callers.group.instances[0].url}/v1/customers/A/balance", headers=other)
        owner = answer.headers["loyalty-served-by"]
        url = f"{owner}/v1/customers/A/balance"
        (instance,) = (each for each in callers.group.instances if each.url == owner)
        polls = [
            asyncio.create_task(callers.http.get(f"{url}?minSequence=9&timeout=20", headers=waits)) for _ in range(2)
        ]
        async with asyncio.timeout(20):
            while len(instance.waiters._waiting.get(b"A", ())) < 2:  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0)

        refused = await callers.http.get(url, headers=waits)
        assert ("1", "too-many-requests") == (refused.headers["retry-after"], problem_type(refused, 429))
        assert 200 == (await callers.http.get(url, headers=other)).status_code
        callers.group.write([balance("A", "1.00", 9)])
        assert [200, 200] == [each.status_code for each in await asyncio.gather(*polls)]
        for _ in range(3):
            assert 200 == (await callers.http.get(url, headers=waits)).status_code

    run_pair(secured, ask, at_once=2)
