"""The routes of the console: pages from responses of the HTTP API. They have no access to the stores or to Kafka.

A request that changes something must have the header HX-Request. A page of another site cannot send it, because the
API allows it to no other origin.
"""

import uuid
from contextlib import suppress
from http import HTTPStatus
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles

from api.console.actions import ACTIONS, Action
from api.console.own_api import COOKIE, Answer, ForwardedStream, call
from api.console.rendering import page, page_of
from services.api_keys.keys import Scope
from services.domain.entries import Kind
from services.state_stores.catalogue import BALANCES

HOME = "/console/"
_ENTRIES_ON_A_PAGE = 20
_DECISION_SECONDS = 20
"""A user waits instead of repeating the command, because a micro-batch takes seconds."""

_LARGEST_COOKIE = 4_096
"""Browsers need not keep a larger cookie (RFC 6265, section 6.1)."""
_TOKEN_TOO_LONG = {
    "title": "The token is too long",
    "detail": f"A browser keeps at most {_LARGEST_COOKIE:,} bytes. Use a token with fewer claims, or an API key.",
}
_NO_CREDENTIALS = {
    "title": "This is no key and no token",
    "detail": "Keys and tokens have printable ASCII characters only. Copy the key again.",
}

_SIGN_IN_AGAIN = {
    "title": "The API does not know you any more",
    "detail": "Your key or token has ended. Sign in again in another tab, then choose the button here again.",
}

FLOW = (
    ("fan-out", ("pos-invoices",), ("shipment", "hadoop", "dead-letters")),
    ("loyalty", ("pos-invoices", "loyalty-commands"), ("loyalty", "loyalty-decisions", "loyalty-balances")),
    ("sales", ("pos-invoices",), ("store-sales",)),
    ("export", ("hadoop",), ()),
)
"""The queries with the topics that they read and write (docs/explanation/architecture.md)."""


router = APIRouter(prefix="/console", include_in_schema=False)


class NoCallerError(Exception):
    """The API cannot say now who the user is.

    Attributes:
        problem: its reason.
    """

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem)
        self.problem = problem


class SignInNeededError(Exception):
    """The user must sign in first."""


def install(app: FastAPI) -> None:
    """Serve the console under /console/, and lead / there."""
    app.include_router(router)
    static = StaticFiles(directory=Path(__file__).parent / "static")

    async def asset(request: Request) -> Response:
        response = await static.get_response(request.path_params["name"], request.scope)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    async def home(_: Request) -> Response:
        return RedirectResponse(HOME, HTTPStatus.SEE_OTHER)

    app.add_route("/console/static/{name}", asset, include_in_schema=False)
    for path in ("/", HOME.rstrip("/")):
        app.add_route(path, home, include_in_schema=False)

    @app.exception_handler(SignInNeededError)
    async def ask_to_sign_in(request: Request, _: Exception) -> Response:
        if "hx-request" not in request.headers:
            return RedirectResponse("/console/sign-in", HTTPStatus.SEE_OTHER)
        if request.method == "POST":
            return _beside_form(_SIGN_IN_AGAIN, may_sign_in=True)
        return Response(headers={"HX-Redirect": "/console/sign-in"})

    @app.exception_handler(NoCallerError)
    async def show_problem(request: Request, error: NoCallerError) -> Response:
        if "hx-request" not in request.headers:
            return page("problem_page.html", user=None, problem=error.problem)
        if request.method == "POST":
            return _beside_form(error.problem)
        return page("problem.html", problem=error.problem)


def _beside_form(problem: dict[str, Any], *, may_sign_in: bool = False) -> Response:
    """Show a problem below the form. The form stays with its key, so its repetition takes effect once."""
    response = page("problem_beside_form.html", problem=problem, may_sign_in=may_sign_in)
    response.headers["HX-Reswap"] = "beforeend"
    return response


async def _ask(request: Request, method: str, path: str, **arguments: Any) -> Answer:
    """The answer of the API. Raises SignInNeededError if it does not know the user."""
    answer = await call(request, method, path, **arguments)
    if answer.status == HTTPStatus.UNAUTHORIZED:
        raise SignInNeededError
    return answer


async def _user(request: Request) -> dict[str, Any]:
    """The caller of the credentials. Raises SignInNeededError or NoCallerError."""
    answer = await _ask(request, "GET", "/v1/caller")
    if not answer.is_good:
        raise NoCallerError(answer.body)
    return answer.body


async def _fields(request: Request) -> list[tuple[str, str]]:
    """The names and values of a user's form. Raises SignInNeededError without a user, before it reads the form."""
    await _user(request)
    return await _fields_of_anybody(request)


async def _fields_of_anybody(request: Request) -> list[tuple[str, str]]:
    """The names and values of a form. Raises SignInNeededError for a form of another site."""
    if "hx-request" not in request.headers:
        raise SignInNeededError
    return parse_qsl((await request.body()).decode("utf-8", "replace"))


async def _form(request: Request) -> dict[str, str]:
    return {name: value.strip() for name, value in await _fields(request)}


@router.get("/sign-in")
async def sign_in_page() -> Response:
    return page("sign_in.html", user=None, problem=None)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Keep the credentials in a cookie if the API knows them."""
    text = dict(await _fields_of_anybody(request)).get("credentials", "").strip()
    request.scope["headers"] = [(b"cookie", f"{COOKIE}={text}".encode("latin-1", "replace"))]
    answer = await call(Request(request.scope), "GET", "/v1/caller")
    if not answer.is_good:
        return page("problem.html", problem=answer.body)
    if not text.isascii() or not text.isprintable():
        return page("problem.html", problem=_NO_CREDENTIALS)
    response = Response(headers={"HX-Redirect": HOME})
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, text, path="/console", httponly=True, samesite="strict", secure=secure)
    if len(response.headers["set-cookie"]) > _LARGEST_COOKIE:
        return page("problem.html", problem=_TOKEN_TOO_LONG)
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    await _fields_of_anybody(request)
    response = Response(headers={"HX-Redirect": "/console/sign-in"})
    response.delete_cookie(COOKIE, path="/console")
    return response


@router.get("/")
async def overview(request: Request) -> Response:
    """The overview. It leads a user who may not see it to the helpdesk, because each user begins here."""
    user = await _user(request)
    if Scope.OPERATE.value not in user["scopes"]:
        return RedirectResponse("/console/helpdesk", HTTPStatus.SEE_OTHER)
    return page("overview.html", user=user)


@router.get("/overview/state")
async def overview_state(request: Request) -> Response:
    answer = await _ask(request, "GET", "/v1/status")
    if not answer.is_good:
        return page("problem.html", problem=answer.body)
    status = answer.body
    topics = {each["name"]: each for each in status["topics"]}
    queries = {each["name"]: each for each in status["queries"]}
    return page("overview_state.html", status=status, topics=topics, queries=queries, flow=FLOW, balances=BALANCES)


@router.get("/overview/reasons")
async def overview_reasons(request: Request) -> Response:
    answer = await _ask(request, "GET", "/v1/dead-letters", limit=1)
    return page_of("overview_reasons.html", answer)


@router.get("/events/status")
async def status_events(request: Request) -> Response:
    return ForwardedStream(request, "/v1/status/events", "/v1/status/events")


@router.get("/events/customers/{card}")
async def customer_events(request: Request, card: str) -> Response:
    return ForwardedStream(request, f"/v1/customers/{card}/events", f"/v1/customers/{quote(card, safe='')}/events")


@router.get("/helpdesk")
async def helpdesk(request: Request, card: str = "", invoice: str = "") -> Response:
    """The search. The number of an invoice leads to its customer, if there is only one."""
    card, invoice, user = card.strip(), invoice.strip(), await _user(request)
    found, problem = [], None
    if invoice and not card and "/" not in invoice:
        answer = await _ask(request, "GET", f"/v1/invoices/{quote(invoice, safe='')}/customers")
        found, problem = answer.body.get("customers", []), None if answer.is_good else answer.body
        card = found[0] if len(found) == 1 else ""
    return page("helpdesk.html", user=user, card=card, invoice=invoice, found=found, problem=problem)


@router.get("/customer")
async def customer(request: Request, card: str) -> Response:
    """All about one customer."""
    card, user = card.strip(), await _user(request)
    balance = await _ask(request, "GET", f"{_of(card)}/balance")
    if not balance.is_good:
        return page("problem.html", problem=balance.body, again=_retry_path(request, balance))
    allowed = {name: each for name, each in ACTIONS.items() if each.scope.value in user["scopes"]}
    return page("customer.html", card=card, answer=balance, actions=allowed, kinds=list(Kind))


@router.get("/customer/balance")
async def balance(request: Request, card: str) -> Response:
    answer = await _ask(request, "GET", f"{_of(card)}/balance")
    if not answer.is_good:
        return page("problem.html", problem=answer.body, again=_retry_path(request, answer))
    return page("balance.html", card=card, answer=answer)


@router.get("/customer/entries")
async def entries(request: Request, card: str) -> Response:
    """A page of the statement, with the filters of the query. The newest entries may follow the balance later."""
    filters = {name: request.query_params.get(name, "") for name in ("kind", "from", "to")}
    cursor = request.query_params.get("cursor")
    answer = await _ask(request, "GET", f"{_of(card)}/entries", limit=_ENTRIES_ON_A_PAGE, cursor=cursor, **filters)
    if answer.status == HTTPStatus.NOT_FOUND:  # the ledger has no entry of this account yet
        answer = answer._replace(status=HTTPStatus.OK, body={"entries": [], "next": None})
    if not answer.is_good:
        return page("problem.html", problem=answer.body, again=_retry_path(request, answer))
    may_redeem = Scope.POINTS_REDEEM.value in (await _user(request))["scopes"]
    is_newest, is_behind = cursor is None and not any(filters.values()), False
    if is_newest:
        balance = await _ask(request, "GET", f"{_of(card)}/balance")
        newest = answer.body["entries"][0]["Sequence"] if answer.body["entries"] else 0
        is_behind = balance.is_good and balance.body["Sequence"] > newest
    values = {"page": answer.body, "filters": filters, "may_redeem": may_redeem}
    return page("entries.html", card=card, is_newest=is_newest, is_behind=is_behind, **values)


@router.get("/customer/{name}")
async def form_of_action(request: Request, name: str, card: str) -> Response:
    # If the user has a key, the API takes the actor from the key.
    given = {"redemption": request.query_params.get("redemption", ""), "actor": (await _user(request))["name"]}
    return page("action.html", name=name, action=_action(name), card=card, given=given)


@router.post("/customer/{name}")
async def act(request: Request, name: str) -> Response:
    """Ask for a confirmation.

    The confirmation has an Idempotency-Key, so it takes effect once, also if it is sent again.
    """
    action, form = _action(name), await _form(request)
    card = form.pop("card", "")
    fields = {each.name: form.get(each.name, "") for each in action.fields}
    key = form.get("key")
    if key is None:
        key = str(uuid.uuid4())
        return page("confirm.html", name=name, action=action, card=card, fields=fields, key=key)
    path = action.path.format(card=quote(card, safe=""), redemption=quote(fields.get("redemption", ""), safe=""))
    body = {each: value for each, value in fields.items() if value and f"{{{each}}}" not in action.path}
    answer = await _ask(request, action.method, path, json=body or None, key=key, timeout=_DECISION_SECONDS)
    return page("outcome.html", name=name, action=action, card=card, fields=fields, key=key, answer=answer)


def _retry_path(request: Request, answer: Answer) -> str:
    """The address that the page requests again by itself if the problem may end. Empty if waiting does not help."""
    may_end = answer.status >= HTTPStatus.TOO_MANY_REQUESTS
    return f"{request.url.path}?{request.url.query}" if may_end else ""


def _action(name: str) -> Action:
    if name not in ACTIONS:
        raise SignInNeededError
    return ACTIONS[name]


def _of(card: str) -> str:
    return f"/v1/customers/{quote(card, safe='')}"


@router.get("/operations")
async def operations(request: Request) -> Response:
    return page("operations.html", user=await _user(request))


@router.get("/operations/dead-letters")
async def dead_letters(request: Request) -> Response:
    reason = request.query_params.get("reason", "")
    answer = await _ask(request, "GET", "/v1/dead-letters", reason=reason)
    user = await _user(request)
    return page_of("dead_letters.html", answer, may_replay=Scope.DEAD_LETTERS.value in user["scopes"], reason=reason)


@router.post("/operations/replay")
async def replay(request: Request) -> Response:
    """First show what a replay would publish, then publish it."""
    form = await _fields(request)
    positions = [value for name, value in form if name == "position"]
    confirmed = ("confirmed", "yes") in form
    order = {"positions": positions, "dryRun": not confirmed}
    answer = await _ask(request, "POST", "/v1/dead-letters/replay", json=order)
    return page("replay.html", answer=answer, positions=positions)


@router.get("/operations/audits")
async def audits(request: Request) -> Response:
    answer = await _ask(request, "GET", "/v1/audits")
    return page_of("audits.html", answer)


@router.get("/operations/programmes")
async def programmes(request: Request) -> Response:
    user = await _user(request)
    answer = await _ask(request, "GET", "/v1/stores/programmes/all", limit=1000)
    if not answer.is_good:
        return page("problem.html", problem=answer.body)
    versions = sorted((each["value"] for each in answer.body["entries"]), key=lambda each: each["Version"])
    may_publish = Scope.PROGRAMME_PUBLISH.value in user["scopes"]
    return page("programmes.html", versions=versions, may_publish=may_publish)


@router.post("/operations/programmes")
async def publish_programme(request: Request) -> Response:
    """Check a programme, or ask for a confirmation and publish it. Lines keep their blanks, because YAML needs them."""
    form = dict(await _fields(request))
    file = {"programme": form.get("programme", "").replace("\r\n", "\n")}
    time, do = form.get("effectiveFrom", "").strip(), form.get("do")
    if do == "confirm":
        answer = await _ask(request, "POST", "/v1/programmes", json=file | ({"effectiveFrom": time} if time else {}))
        return page("programme_outcome.html", answer=answer, is_check=False)
    answer = await _ask(request, "POST", "/v1/programmes/check", json=file)
    if do == "publish" and answer.is_good and answer.body["valid"]:
        return page("programme_confirm.html", time=time, **file)
    return page("programme_outcome.html", answer=answer, is_check=True)


@router.post("/operations/simulate")
async def simulate(request: Request) -> Response:
    form = await _form(request)
    members = ("TotalAmount", "CustomerCardNo", "CustomerType", "StoreID")
    basket: dict[str, Any] = {name: form[name] for name in members if form.get(name)}
    with suppress(KeyError, ValueError):  # The API says what is wrong with a text.
        amount = float(basket["TotalAmount"])
        if isfinite(amount):  # JSON has no other numbers
            basket["TotalAmount"] = amount
    return page("simulation.html", answer=await _ask(request, "POST", "/v1/simulate", json=basket))


@router.get("/operations/settings")
async def settings(request: Request) -> Response:
    answer = await _ask(request, "GET", "/v1/settings")
    return page_of("settings.html", answer)
