"""Requests that one instance forwards to another: signatures, reports and secrets that change."""

import asyncio
from itertools import starmap
from pathlib import Path

import pytest

from api.security.caller import Caller
from api.security.hops import HOP, HopRequest, Hops, InstanceSecrets
from services.api_keys.keys import Scope
from services.state_stores.assignment import Role
from tests.support.builders import balance, problem_type
from tests.support.clusters import Callers, Group, with_marks
from tests.support.secured import BALANCE, SecuredGroup, bearer, run_pair

pytestmark = pytest.mark.anyio


def test_forged_and_replayed_hops_are_refused(secured: SecuredGroup, tmp_path: Path) -> None:
    """Only a fresh signature of the group lets a request in as a forwarded one, and only once."""

    async def ask(callers: Callers) -> None:
        one = callers.group.instances[0]
        url, standby = one.url + BALANCE, HopRequest("GET", BALANCE, Role.STANDBY.value)
        stranger = Hops("http://evil:8080", InstanceSecrets(tmp_path / "other.secret"))
        peer = Hops(callers.group.instances[1].url, InstanceSecrets(secured.secret_file))
        good = peer.sign(None, one.url, standby)
        key, token = bearer(secured.key(*Scope).text), bearer(secured.issuer.token())

        async def status(headers: dict[str, str]) -> int:
            answer = await callers.http.get(url, headers=headers)
            if answer.status_code == 403:
                assert "forward-refused" == problem_type(answer, 403)
            return answer.status_code

        role = {"Loyalty-Forwarded-To": Role.STANDBY.value}
        assert 403 == await status({**key, **role})
        assert 403 == await status(role)
        assert 403 == await status({**key, **role, HOP: "nonsense"})
        assert [200, 403, 403] == [await status({**token, **more}) for more in ({}, role, {HOP: "nonsense"})], (
            "a token that is known is no exception"
        )
        assert 403 == await status({**role, HOP: stranger.sign(None, one.url, standby)})
        assert 403 == await status({HOP: good})
        assert 403 == await status({"Loyalty-Forwarded-To": Role.ACTIVE.value, HOP: good})
        assert await status({**role, HOP: good}) in {200, 503}
        assert 403 == await status({**role, HOP: good})
        signed = peer.sign(None, one.url, HopRequest("GET", BALANCE, Role.STANDBY.value))
        assert 403 == await status({**role, "Loyalty-Group": "other", HOP: signed}), (
            "two deployments can have one secret"
        )

    run_pair(secured, ask)


def test_the_receiver_of_a_forward_checks_body_key_and_card(secured: SecuredGroup) -> None:
    """A signed request with another body or Idempotency-Key is refused. The receiver refuses another card, too."""

    async def ask(callers: Callers) -> None:
        headers = bearer(secured.issuer.token())
        answer = await callers.http.get(callers.group.instances[0].url + BALANCE, headers=headers)
        owner = answer.headers["loyalty-served-by"]
        peer = Hops("http://peer:8080", InstanceSecrets(secured.secret_file))
        anna = Caller("token:anna", frozenset(Scope), card="A")
        keys, own, foreign = "/v1/stores/customer-balances/keys", b'{"keys":["A"]}', b'{"keys":["B"]}'

        async def send(method: str, path: str, signed: bytes | None, sent: bytes | None, *headers: str) -> tuple:
            request = HopRequest(method, path, Role.ACTIVE.value, "k")
            hop = peer.sign(anna, owner, request, signed)
            given = [("Loyalty-Forwarded-To", Role.ACTIVE.value), (HOP, hop), ("Content-Type", "application/json")]
            given += [("Idempotency-Key", each) for each in headers]
            answer = await callers.http.request(method, owner + path, content=sent, headers=given)
            code = "" if answer.is_success else problem_type(answer, answer.status_code)
            return answer.status_code, code

        refused = (403, "forward-refused")
        assert 200 == (await send("POST", keys, own, own, "k"))[0]
        assert refused == await send("POST", keys, own, foreign, "k")
        assert refused == await send("POST", keys, own, None, "k")
        assert refused == await send("POST", keys, own, own, "other")
        assert refused == await send("POST", keys, own, own, "other", "k")
        assert refused == await send("POST", "/v1/redemptions/of-A/void", None, b"{}", "k")
        assert (403, "not-yours") == await send("POST", keys, foreign, foreign, "k")
        assert (403, "not-yours") == await send("GET", "/v1/customers/B/balance", None, None, "k")
        assert (200, "") == await send("GET", BALANCE, None, None, "k")

    run_pair(secured, ask)


def test_each_command_reaches_its_owner(secured: SecuredGroup) -> None:
    """The instance that forwards it signs its Idempotency-Key, too. Each one owns about half of them. The audit
    trail has each command once.
    """

    async def ask(callers: Callers) -> None:
        first, second = map(with_marks, callers.group.instances)
        key, body = bearer(secured.key(*Scope).text), {"points": "1", "reason": "goodwill", "actor": "clerk 7"}
        for number in range(8):
            url, headers = f"{first.url}/v1/customers/A/adjustments?timeout=0", {"Idempotency-Key": str(number)}
            answer = await callers.http.post(url, json=body, headers=key | headers)
            assert 202 == answer.status_code
        assert first.command_log.commands
        assert second.command_log.commands

    run_pair(secured, ask)
    assert 8 == len(secured.trail.records)


def test_release_0_1_can_forward_during_an_upgrade(secured: SecuredGroup) -> None:
    """With the temporary setting a request without signature counts as forwarded, by the caller's own credentials."""

    async def ask(callers: Callers) -> None:
        one = callers.group.instances[0]
        url, role = one.url + "/v1/customers/A/balance", {"Loyalty-Forwarded-To": Role.STANDBY.value}
        statuses = [
            (await callers.http.get(url, headers={**role, **headers})).status_code
            for headers in ({}, bearer(secured.key().text), bearer(secured.key(Scope.BALANCE_READ).text))
        ]
        assert [401, 403] == statuses[:2]
        assert statuses[2] in {200, 421, 503}
        assert 200 == (await callers.get(0, "/v1/instances/local")).status_code
        assert 401 == (await callers.get(0, "/v1/instances")).status_code

    run_pair(secured, ask, unsigned=True)


def test_instances_read_each_others_reports(secured: SecuredGroup) -> None:
    """Without a signature the report of an instance is not readable, and with one it is."""

    async def ask(callers: Callers) -> None:
        one, two = callers.group.instances
        assert 401 == (await callers.get(0, "/v1/instances/local")).status_code
        report = await one.app.state.dependencies.peers.report(two.url)
        assert two.url == report.url

    run_pair(secured, ask)


async def test_a_peer_with_another_secret_counts_as_unreachable(secured: SecuredGroup, tmp_path: Path) -> None:
    """The client gets 502, as for a peer that is down, and never the refusal between two instances."""

    async def ask(callers: Callers) -> None:
        headers = bearer(secured.key(Scope.BALANCE_READ).text)
        answers = [
            await callers.http.get(f"{each.url}/v1/customers/{card}/balance", headers=headers)
            for each in callers.group.instances
            for card in "ABC"
        ]
        statuses = [each.status_code for each in answers]
        assert {200, 502} == set(statuses)

    other = SecuredGroup(tmp_path)
    other.keys, other.issuer = secured.keys, secured.issuer
    other.secret_file = tmp_path / "other.secret"
    group = Group.of(2, lambda url: (secured if "0" in url.partition("-")[2][:1] else other).security(url))
    group.share(lambda place: place[1] % 2)
    group.write([balance(card, "1.00") for card in "ABC"])
    async with group.running() as callers:
        await ask(callers)


def test_keys_and_secrets_rotate_under_load_without_a_refusal(
    secured: SecuredGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens, API keys, the issuer's key and the secret of the group change. Reads with old and new ones are 200."""
    monkeypatch.setattr("api.security.hops._LOOK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("api.security.issuer_keys.RETRY_SECONDS", 0.0)
    old = secured.security("http://x:1") and secured.secret_file.read_text().strip()
    new = "n" * 43

    async def ask(callers: Callers) -> None:
        statuses = []
        text, key = secured.key(Scope.BALANCE_READ)

        def credentials() -> list[str]:
            return [text if each % 5 == 0 else secured.issuer.token(sub=f"caller {each}") for each in range(30)]

        async def read(number: int, given: str) -> None:
            url = callers.group.instances[number % 2].url
            path = f"/v1/customers/{'ABC'[number % 3]}/balance"
            statuses.append((await callers.http.get(url + path, headers=bearer(given))).status_code)

        for secrets in (f"{old}\n{new}\n", f"{new}\n{old}\n", f"{new}\n"):
            before = credentials()
            secured.secret_file.write_text(secrets)
            secured.issuer.rotate()
            old_key, (text, key) = key, secured.key(Scope.BALANCE_READ)
            await asyncio.gather(*starmap(read, enumerate(before)), *starmap(read, enumerate(credentials())))
            secured.publish(old_key.revoked(1))
        assert 180 == statuses.count(200) == len(statuses)

    run_pair(secured, ask)
