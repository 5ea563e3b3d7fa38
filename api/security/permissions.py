"""The permissions of routes. Routes declare them as dependencies, so that FastAPI and the fast path check them."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import orjson
from fastapi import Depends, Request
from fastapi.routing import APIRoute

from api.routing.problems import CardMoved
from api.security.caller import EVERYBODY, Caller
from api.security.limits import Usage
from api.security.problems import NotYours, Unauthenticated
from services.api_keys.keys import Scope
from services.state_stores import catalogue

FOLLOWS_COMMANDS = (
    Scope.BALANCE_READ,
    Scope.POINTS_REDEEM,
    Scope.POINTS_ADJUST,
    Scope.CARD_MANAGE,
    Scope.CUSTOMER_ERASE,
)


CHECKS: set[Callable[..., Any]] = set()
"""All dependencies that check the rights of a caller. They do not read the body of the request."""


def checks_of(route: APIRoute) -> list[Callable[..., Any]]:
    """The dependencies of a route that check the rights of a caller. Each is a coroutine function of the request."""
    return [each.dependency for each in route.dependencies if each.dependency in CHECKS]


def caller_of(request: Request) -> Caller:
    """The caller of a request. Raises Unauthenticated if the API needs credentials and nothing has checked them."""
    caller: Caller | None = request.scope.get("caller")
    if caller is not None:
        return caller
    if request.app.state.dependencies.security is not None:
        raise Unauthenticated("The request has no credentials")
    return EVERYBODY


def needs(*scopes: Scope) -> Any:
    """A dependency that raises Problem unless the caller has one of the scopes, and may see the card of the path."""
    required = frozenset(scopes)

    async def permit(request: Request) -> None:
        caller = _counted(request)
        # Two sets compare stored hashes. ``require`` alone would hash each scope at each request.
        if required.isdisjoint(caller.scopes):
            caller.require(*scopes)
        if caller.card is not None and (card := request.path_params.get("card")) is not None:
            caller.require_card(card)

    CHECKS.add(permit)
    return Depends(permit)


class _Rule(NamedTuple):
    """Who may read a store.

    Attributes:
        limit: returns the limit of a caller for the keys of this store; None: the caller may read all keys.
        check: raises NotYours for a key outside of the limit.
    """

    scope: Scope
    limit: Callable[[Caller], object] = lambda _: None
    check: Callable[[Caller, str], None] = lambda *_: None


def _refuse(_: Caller, __: str) -> None:
    # The key of a decision does not name the card. GET /v1/commands/{command} checks the card in the decision.
    raise NotYours


_card, _stores = attrgetter("card"), attrgetter("store_ids")
_OF_CARD = _Rule(Scope.BALANCE_READ, _card, Caller.require_card)
_RULES: Mapping[str, _Rule] = {
    catalogue.BALANCES: _OF_CARD,
    catalogue.TOP_CUSTOMERS: _OF_CARD,
    catalogue.DECISIONS: _Rule(Scope.BALANCE_READ, _card, _refuse),
    catalogue.STORE_SALES: _Rule(
        Scope.OPERATE, _stores, lambda caller, key: caller.require_store(key.rpartition("@")[0])
    ),
    catalogue.STORES: _Rule(Scope.BALANCE_READ, _stores, Caller.require_store),
    catalogue.PROGRAMMES: _Rule(Scope.BALANCE_READ),
}
# A store without a rule is new or unknown.
_OTHER = _Rule(Scope.OPERATE)


async def may_read_store(request: Request) -> None:
    """Raise Problem unless the caller may read the key, or the whole store, of the path."""
    caller, rule = _counted(request), _RULES.get(request.path_params["store"], _OTHER)
    caller.require(rule.scope)
    if rule.limit(caller) is None:
        return
    if (key := request.path_params.get("key")) is not None:
        # The key of a window is StoreID@time. The path of /windows has only the StoreID.
        is_shop = request.path_params["store"] == catalogue.STORE_SALES and "/windows/" in request.scope["route"].path
        rule.check(caller, f"{key}@" if is_shop else key)
    elif request.method != "POST":
        # A range, a page or a count shows keys of other callers. For a POST, require_keys checks the keys in the body.
        raise NotYours


CHECKS.add(may_read_store)


def require_keys(request: Request, store: str, keys: Iterable[str]) -> None:
    """Raise NotYours unless the caller may read all of these keys."""
    caller, rule = caller_of(request), _RULES.get(store, _OTHER)
    if rule.limit(caller) is not None:
        for key in keys:
            rule.check(caller, key)


MOVED = b'"MovedTo":"'
"""Only the balance of a moved account contains these bytes. To look for them is faster than to parse each body."""


def visible(caller: Caller, body: bytes) -> bytes:
    """The stored value as a caller may see it. A caller that is limited to one card does not see the new card."""
    if caller.card is None or MOVED not in body:
        return body
    return orjson.dumps(orjson.loads(body) | {"MovedTo": None})


def moved(caller: Caller, to: str) -> CardMoved:
    """The problem of a card whose account has moved. A caller that is limited to one card does not see the new card."""
    return CardMoved(newCard=to) if caller.card is None else CardMoved()


def _counted(request: Request) -> Caller:
    """The caller, after its request is counted once. Raises Unauthenticated and TooManyRequests."""
    scope, caller = request.scope, caller_of(request)
    usage: Usage | None = scope.pop("usage", None)
    if usage is not None:
        usage.count(scope["route"].path)
    return caller
