"""The console: pages that show responses of the HTTP API. It has no access to the stores or to Kafka.

This module installs the console. It has the sign-in and the overview. ``helpdesk`` and ``operations`` have the other
pages.

A request that changes something must have the header HX-Request. A page of another site cannot send this header,
because the API does not allow it to other origins.
"""

from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles

from api.console import helpdesk, operations
from api.console.own_api import COOKIE, ForwardedStream, call
from api.console.rendering import beside_form, page, page_of
from api.console.users import NoCallerError, SignInNeededError, ask, fields_of_anybody, user_of
from services.api_keys.keys import Scope
from services.state_stores.catalogue import BALANCES

HOME = "/console/"
_LARGEST_COOKIE = 4_096
"""A browser may drop a larger cookie (RFC 6265, section 6.1)."""
_TOKEN_TOO_LONG = {
    "title": "The token is too long",
    "detail": f"A browser keeps at most {_LARGEST_COOKIE:,} bytes. Use a token with fewer claims, or an API key.",
}
_NO_CREDENTIALS = {
    "title": "This is not an API key or a token",
    "detail": "Keys and tokens have printable ASCII characters only. Copy the key or token again.",
}
_SIGN_IN_AGAIN = {
    "title": "The API does not know you any more",
    "detail": "Your key or token has ended. Sign in again in another tab, then choose the button here again. "
    "If there is no button, load the page again.",
    "signIn": "/console/sign-in",
}

_ARCHIVE = "archive"
"""The query that a deployment can leave out. Other queries that do not answer are a problem."""

FLOW = (
    ("fan-out", ("pos-invoices",), ("shipment", "hadoop", "dead-letters")),
    (
        "loyalty",
        ("pos-invoices", "loyalty-commands", "loyalty-programmes"),
        ("loyalty", "loyalty-balances", "loyalty-decisions", "loyalty-commands", "dead-letters"),
    ),
    ("sales", ("pos-invoices",), ("store-sales",)),
    ("export", ("hadoop",), ("files", "dead-letters")),
    (_ARCHIVE, ("pos-invoices", "loyalty-commands", "loyalty-programmes"), ("files",)),
)
"""The queries with the topics that they read and write (docs/explanation/architecture.md)."""

FOLLOWERS = (
    (
        "api",
        ("loyalty-balances", "loyalty-decisions", "store-sales", "loyalty-programmes", "stores"),
        ("local stores",),
    ),
    ("ledger", ("loyalty",), ("SQL database",)),
    ("webhooks", ("loyalty",), ("endpoints", "dead-letters")),
)
"""The parts that follow topics, by their name in the status, with the topics and where the records go."""

router = APIRouter(prefix="/console", include_in_schema=False)


def install(app: FastAPI) -> None:
    """Serve the console under /console/, and redirect / to it."""
    for each in (router, helpdesk.router, operations.router):
        app.include_router(each)
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
    _install_error_handlers(app)


def _install_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(SignInNeededError)
    async def ask_to_sign_in(request: Request, _: Exception) -> Response:
        if "hx-request" not in request.headers:
            return RedirectResponse("/console/sign-in", HTTPStatus.SEE_OTHER)
        return _problem_of(request, _SIGN_IN_AGAIN)

    @app.exception_handler(NoCallerError)
    async def show_problem(request: Request, error: NoCallerError) -> Response:
        if "hx-request" not in request.headers:
            return page("problem_page.html", user=None, problem=error.problem)
        return _problem_of(request, error.problem)


def _problem_of(request: Request, problem: dict[str, str]) -> Response:
    """Show a problem of the user, and keep the rest of the page. Another part may have a form with its key."""
    return beside_form(problem) if request.method == "POST" else page("problem.html", problem=problem)


@router.get("/sign-in")
async def sign_in_page() -> Response:
    return page("sign_in.html", user=None, problem=None)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Keep the credentials in a cookie if the API knows them."""
    text = dict(await fields_of_anybody(request)).get("credentials", "").strip()
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
    await fields_of_anybody(request)
    response = Response(headers={"HX-Redirect": "/console/sign-in"})
    response.delete_cookie(COOKIE, path="/console")
    return response


@router.get("/")
async def overview(request: Request) -> Response:
    """The overview. It redirects a user who may not see it to the helpdesk, because the sign-in leads here."""
    user = await user_of(request)
    if Scope.OPERATE.value not in user["scopes"]:
        return RedirectResponse("/console/helpdesk", HTTPStatus.SEE_OTHER)
    return page("overview.html", user=user)


@router.get("/overview/state")
async def overview_state(request: Request) -> Response:
    answer = await ask(request, "GET", "/v1/status")
    if not answer.is_good:
        return page("problem.html", problem=answer.body)
    status = answer.body
    of_names = {kind: {each["name"]: each for each in status[kind]} for kind in ("topics", "queries", "parts")}
    flow = [each for each in FLOW if each[0] != _ARCHIVE or _ARCHIVE in of_names["queries"]]
    return page("overview_state.html", status=status, flow=flow, followers=FOLLOWERS, balances=BALANCES, **of_names)


@router.get("/overview/reasons")
async def overview_reasons(request: Request) -> Response:
    answer = await ask(request, "GET", "/v1/dead-letters", limit=0)
    return page_of("overview_reasons.html", answer)


@router.get("/events/status")
async def status_events(request: Request) -> Response:
    return ForwardedStream(request, "/v1/status/events")
