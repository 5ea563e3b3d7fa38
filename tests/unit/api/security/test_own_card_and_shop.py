"""Callers that are limited to one card or to some shops, on one instance and behind a forward."""

import pytest
from fastapi.testclient import TestClient

from api.security.hops import HOP
from schemas.topics import LOYALTY_BALANCES, STORES
from services.api_keys.keys import Scope
from tests.support.builders import balance, problem_type
from tests.support.clusters import Callers, Instance
from tests.support.secured import EVERYTHING, SecuredGroup, bearer, decision, run_pair

OWN = [
    "/v1/customers/A/balance",
    "/v1/stores/customer-balances/keys/A",
    "/v1/stores/customer-balances/local/keys/A",
    "/v1/commands/of-A",
]
NOT_OWN = [
    "/v1/customers/B/balance",
    "/v1/customers/B/balance?minSequence=wrong",
    "/v1/customers/B/entries",
    "/v1/customers/B/statement",
    "/v1/stores/customer-balances/keys/B",
    "/v1/stores/customer-balances/local/keys/B",
    "/v1/stores/top-customers/keys/B",
    "/v1/stores/customer-balances/all",
    "/v1/stores/customer-balances/count",
    "/v1/stores/customer-balances/range?from=A&to=A",
    "/v1/stores/customer-balances/local/range",
    "/v1/stores/decisions/keys/of-A",
    "/v1/commands/of-B",
]


def test_one_card_is_one_card_also_behind_a_forward(secured: SecuredGroup) -> None:
    """For every instance and every owner, the caller's card is 200, and every other card is 403."""

    async def ask(callers: Callers) -> None:
        headers = bearer(secured.issuer.token("balance:read ledger:read", card="A"))
        forwarded = 0
        for number, each in enumerate(callers.group.instances):
            for path in OWN:
                answer = await callers.http.get(each.url + path, headers=headers)
                assert answer.status_code in {200, 421 if "/local/" in path else 200}, path
                forwarded += answer.headers.get("loyalty-served-by") == callers.group.instances[1 - number].url
            for path in NOT_OWN:
                answer = await callers.http.get(each.url + path, headers=headers)
                assert "not-yours" == problem_type(answer, 403), path
            for keys, status in ((["A"], 200), (["A", "B"], 403)):
                url = f"{each.url}/v1/stores/customer-balances/keys"
                answer = await callers.http.post(url, json={"keys": keys}, headers=headers)
                assert status == answer.status_code
            for card, status in (("A", 200), ("B", 403)):
                body = {"TotalAmount": 1.0, "CustomerCardNo": card}
                answer = await callers.http.post(f"{each.url}/v1/simulate", json=body, headers=headers)
                assert status == answer.status_code
        assert forwarded
        hops = [each.headers[HOP] for each in callers.group.sent if HOP in each.headers]
        assert hops
        assert all("authorization" not in each.headers for each in callers.group.sent if HOP in each.headers)

    run_pair(secured, ask)


@pytest.mark.parametrize(
    ("scope", "codes"), [("points:redeem", {"not-yours", "scope-missing"}), (EVERYTHING, {"not-yours"})]
)
def test_commands_belong_to_the_own_card(
    secured: SecuredGroup, instance: Instance, scope: str, codes: set[str]
) -> None:
    """A caller with one card can neither end a redemption of another card, nor send a command for it, nor move its
    account there.
    """
    instance.write(*decision("of-B", "B"))
    words = {"reason": "r", "actor": "a"}
    requests = [
        ("POST", "/v1/customers/B/redemptions", {"points": "1"}),
        ("POST", "/v1/redemptions/of-B/capture", None),
        ("POST", "/v1/redemptions/of-B/void", None),
        ("POST", "/v1/transfers", {"from": "B", "to": "A", "points": "1"}),
        ("POST", "/v1/customers/B/adjustments", {"points": "1", **words}),
        ("POST", "/v1/customers/A/replacement", {"newCard": "B", **words}),
        ("POST", "/v1/customers/A/merge", {"into": "B", **words}),
        ("DELETE", "/v1/customers/B", None),
        ("GET", "/v1/commands/of-B", None),
    ]
    headers = {**bearer(secured.issuer.token(scope, card="A")), "Idempotency-Key": "k"}
    with TestClient(instance.app) as client:
        for method, path, body in requests:
            assert problem_type(client.request(method, path, json=body, headers=headers), 403) in codes, path

    assert ([], []) == (instance.command_log.marks, instance.command_log.commands)


def test_each_store_needs_its_own_scope(secured: SecuredGroup, instance: Instance) -> None:
    """The sales of the shops, and a store that the API does not know, are for operators only. The others are not."""
    of_operators = {"store-sales", "api-keys"}
    with TestClient(instance.app) as client:
        for scope, expected in ((Scope.OPERATE, of_operators), (Scope.BALANCE_READ, {*instance.stores} - of_operators)):
            key = bearer(secured.key(scope).text)
            paths = {store: f"/v1/stores/{store}/count" for store in (*instance.stores, "api-keys")}
            assert expected == {
                store for store, path in paths.items() if client.get(path, headers=key).status_code != 403
            }


@pytest.mark.parametrize("is_limited", [True, False])
def test_a_caller_with_one_card_does_not_see_the_card_that_replaced_it(
    secured: SecuredGroup, instance: Instance, *, is_limited: bool
) -> None:
    """Otherwise the finder of a lost card learns the new one."""
    instance.write(LOYALTY_BALANCES, "A", {**balance("A", "1.00")[2], "MovedTo": "NEW-CARD"})
    path, claims = "/v1/stores/customer-balances", {"card": "A"} if is_limited else {}
    headers = bearer(secured.issuer.token(EVERYTHING, **claims))
    with TestClient(instance.app) as client:
        answers = [
            client.get("/v1/customers/A/balance", headers=headers),
            client.get(f"{path}/keys/A", headers=headers),
            client.get(f"{path}/local/keys/A", headers=headers),
            client.post(f"{path}/keys", json={"keys": ["A"]}, headers=headers),
            client.post(f"{path}/local/keys", json={"keys": ["A"]}, headers=headers),
        ]
    assert [410, 200, 200, 200, 200] == [each.status_code for each in answers]
    assert {not is_limited} == {b"NEW-CARD" in each.content for each in answers}


def test_a_till_is_limited_to_its_shops(secured: SecuredGroup, instance: Instance) -> None:
    """Other shops, their sales and their baskets are refused. Cards are not, because customers shop everywhere.

    The name of another shop can begin with that of the till's shop and an @.
    """
    instance.write(*balance("A", "1.00"))
    shop = {"StoreID": "STR1", "Name": "n", "City": "c", "State": "s"}
    for store_id in ("STR1", "STR2"):
        instance.write(STORES, store_id, {**shop, "StoreID": store_id})
    headers = bearer(secured.key(Scope.BALANCE_READ, Scope.OPERATE, stores=["STR1"]).text)
    times = "?from=1700000000000&to=1700000060000"
    expected = {
        "/v1/customers/A/balance": 200,
        "/v1/stores/stores/keys/STR1": 200,
        "/v1/stores/stores/keys/STR2": 403,
        "/v1/stores/stores/all": 403,
        "/v1/stores/store-sales/keys/STR1@1700000000000": 404,
        "/v1/stores/store-sales/keys/STR2@1700000000000": 403,
        "/v1/stores/store-sales/keys/STR1@Kochi@1700000000000": 403,
        f"/v1/stores/store-sales/windows/STR1{times}": 200,
        f"/v1/stores/store-sales/windows/STR1@Kochi{times}": 403,
        f"/v1/stores/store-sales/windows/STR2{times}": 403,
        f"/v1/stores/store-sales/local/windows/STR2{times}": 403,
        "/v1/stores/store-sales/count": 403,
    }
    with TestClient(instance.app) as client:
        assert expected == {path: client.get(path, headers=headers).status_code for path in expected}
        for store_id, status in (("STR1", 200), ("STR2", 403), (None, 200)):
            body = {"TotalAmount": 1.0, **({"StoreID": store_id} if store_id else {})}
            assert status == client.post("/v1/simulate", json=body, headers=headers).status_code
