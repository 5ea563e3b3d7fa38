"""The helpdesk of the console: finds a customer, shows the balance and the entries, and sends commands."""

import asyncio
import uuid
from collections import defaultdict
from http import HTTPStatus
from itertools import takewhile
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from api.console.actions import ACTIONS, Action
from api.console.own_api import Answer, ForwardedStream
from api.console.rendering import beside_form, page
from api.console.users import SignInNeededError, ask, form_of, user_of
from services.api_keys.keys import Scope
from services.domain.entries import Kind

_ENTRIES_ON_A_PAGE = 20
_DECISION_SECONDS = 20
"""How long a page waits for a decision. A micro-batch takes seconds, and the user should not repeat the command."""

router = APIRouter(prefix="/console", include_in_schema=False)


@router.get("/events/customers/{card}")
async def customer_events(request: Request, card: str) -> Response:
    return ForwardedStream(request, f"{_of(card)}/events")


@router.get("/helpdesk")
async def helpdesk(request: Request, card: str = "", invoice: str = "") -> Response:
    """The search by card or invoice number. It shows the customer of the invoice if there is only one."""
    card, invoice, user = card.strip(), invoice.strip(), await user_of(request)
    found, problem = [], None
    if invoice and not card:
        answer = await ask(request, "GET", f"/v1/invoices/{quote(invoice, safe='')}/customers")
        found, problem = answer.body.get("customers", []), None if answer.is_good else answer.body
        card = found[0] if len(found) == 1 else ""
    return page("helpdesk.html", user=user, card=card, invoice=invoice, found=found, problem=problem)


@router.get("/customer")
async def customer(request: Request, card: str) -> Response:
    """The balance, the commands and the entries of a customer."""
    card, user = card.strip(), await user_of(request)
    balance = await ask(request, "GET", f"{_of(card)}/balance")
    if not balance.is_good:
        return _problem_with_retries(request, balance)
    allowed = {name: each for name, each in ACTIONS.items() if each.scope.value in user["scopes"]}
    return page("customer.html", card=card, answer=balance, actions=allowed, kinds=list(Kind))


@router.get("/customer/balance")
async def balance(request: Request, card: str) -> Response:
    answer = await ask(request, "GET", f"{_of(card)}/balance")
    if not answer.is_good:
        return _problem_with_retries(request, answer)
    return page("balance.html", card=card, answer=answer)


@router.get("/customer/entries")
async def entries(request: Request, card: str) -> Response:
    """A page of the entries, with the filters of the query. The newest entries may come later than the balance."""
    filters = {name: request.query_params.get(name, "") for name in ("kind", "from", "to")}
    cursor, path = request.query_params.get("cursor"), f"{_of(card)}/entries"
    is_first, is_filtered, is_behind = cursor is None, any(filters.values()), False
    # A page without a filter has the newest entry. With a filter, ask before the page, which may have more.
    newest = await ask(request, "GET", path, limit=1) if is_first and is_filtered else None
    answer = await ask(request, "GET", path, limit=_ENTRIES_ON_A_PAGE, cursor=cursor, **filters)
    if answer.status == HTTPStatus.NOT_FOUND:  # The ledger has no entry of this account yet.
        answer = answer._replace(status=HTTPStatus.OK, body={"entries": [], "next": None})
    if not answer.is_good:
        return _problem_with_retries(request, answer)
    may_redeem = Scope.POINTS_REDEEM.value in (await user_of(request))["scopes"]
    if is_first:
        balance = await ask(request, "GET", f"{_of(card)}/balance")
        sequence = max((each["Sequence"] for each in (newest or answer).body.get("entries", [])), default=0)
        is_behind = balance.is_good and balance.body["Sequence"] > sequence
    may_end = may_redeem and is_first and not is_filtered
    can_end = await _open_redemptions(request, answer.body["entries"]) if may_end else set()
    values = {"page": answer.body, "filters": filters, "can_end": can_end}
    response = page("entries.html", card=card, is_first=is_first, is_behind=is_behind, **values)
    if is_behind:
        response.headers["HX-Trigger"] = '{"again": {"target": "#entries"}}'  # The page loads the statement again.
    return response


async def _open_redemptions(request: Request, entries: list[dict[str, Any]]) -> set[str]:
    """The redemptions of these entries that have not ended. The entries are the newest ones of the customer.

    The entry of a capture or a void has the id of its command, and the decision of the command names the redemption.
    If the decision is not known, the redemption counts as open. The API then refuses a second end.
    """
    # When no points are reserved, all older reservations have ended.
    newest = [*takewhile(lambda each: each["ReservedLoyaltyPoints"] != "0.00", entries)]
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for entry in newest:
        ids[entry["Kind"]].add(entry["EventID"])
    found = ids[Kind.RESERVED] - ids[Kind.LAPSED]
    ends = ids[Kind.REDEEMED] | ids[Kind.VOIDED] if found else set()
    decisions = await asyncio.gather(*(ask(request, "GET", f"/v1/commands/{quote(each, safe='')}") for each in ends))
    return found - {each.body.get("RedemptionID") for each in decisions}


@router.get("/customer/{name}")
async def form_of_action(request: Request, name: str, card: str) -> Response:
    # With credentials, the API takes the actor from them. So the form shows the name of the user.
    given = {"actor": (await user_of(request))["name"], **request.query_params}
    return page("action.html", name=name, action=_action(name), card=card, given=given, problem=None)


@router.post("/customer/{name}")
async def act(request: Request, name: str) -> Response:
    """Ask for a confirmation, or send the confirmed command.

    The form of the confirmation has an Idempotency-Key. So the command takes effect once, even if the user repeats it.
    The form stays on the page until the command is done or refused. After a refusal, the user can correct the fields.
    """
    action, form = _action(name), await form_of(request)
    card = form.pop("card", "")
    fields = {each.name: form.get(each.name, "") for each in action.fields}
    values, key = {"name": name, "action": action, "card": card}, form.get("key")
    redemption = quote(fields.get("redemption", ""), safe="")
    if key is None:
        reservation = await ask(request, "GET", f"/v1/commands/{redemption}") if redemption else None
        if reservation and not reservation.is_good:
            return page("action.html", **values, given=fields, problem=reservation.body)
        return page("confirm.html", **values, fields=fields, key=str(uuid.uuid4()), reservation=reservation)
    path = action.path.format(card=quote(card, safe=""), redemption=redemption)
    body = {each: value for each, value in fields.items() if value and f"{{{each}}}" not in action.path}
    answer = await ask(request, action.method, path, json=body or None, key=key, timeout=_DECISION_SECONDS)
    if problem := _doubt_about(answer):
        return beside_form(problem)
    if not answer.is_good:
        return page("action.html", **values, given=fields, problem=answer.body)
    return page("outcome.html", **values, answer=answer)


def _doubt_about(answer: Answer) -> dict[str, Any] | None:
    """The problem of a command that may be executed. None for a command that is done or refused."""
    again = "Choose Confirm again. A repetition takes effect once."
    if answer.status == HTTPStatus.ACCEPTED and answer.body["Status"] == "done":
        return {"title": "The command is done, and the balance does not show it yet", "detail": again}
    if answer.status == HTTPStatus.ACCEPTED or str(answer.body.get("type")).endswith(":command-in-flight"):
        return {"title": "The command is sent, and has no decision yet", "detail": again}
    # The user may have lost a scope after the first attempt.
    if answer.status == HTTPStatus.FORBIDDEN or answer.status >= HTTPStatus.TOO_MANY_REQUESTS:
        return answer.body | {"detail": f"{answer.body['detail']} {again}"}
    return None


def _problem_with_retries(request: Request, answer: Answer) -> Response:
    """Show a problem. The page requests the URL again until a temporary problem has ended.

    Until then it keeps the first message, because a screen reader would read each new one aloud.
    """
    if answer.status < HTTPStatus.TOO_MANY_REQUESTS:
        return page("problem.html", problem=answer.body)
    if "again" in request.query_params:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return page("problem.html", problem=answer.body, again=f"{request.url.path}?{request.url.query}&again=yes")


def _action(name: str) -> Action:
    if name not in ACTIONS:
        raise SignInNeededError
    return ACTIONS[name]


def _of(card: str) -> str:
    return f"/v1/customers/{quote(card, safe='')}"
