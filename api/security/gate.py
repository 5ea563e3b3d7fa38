"""The gate in front of all routes. It finds the caller of each request, or refuses the request.

request of a peer, with Loyalty-Hop      ──► the peer's signature names the caller
request with Authorization: Bearer       ──► an API key, or a token of the issuer
request without                          ──► 401, except for the public paths
"""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http import documentation
from api.http.metrics import Metrics
from api.http.problems import Problem
from api.http.responses import FRESHNESS
from api.http.tracing import INTERNAL_PATHS
from api.routing.peer_client import REPORT_PATH
from api.routing.peer_messages import FORWARDED_TO
from api.security.audit import RequestAudit
from api.security.caller import UNSIGNED_INSTANCE, Caller
from api.security.hops import HOP, HopRequest, Hops
from api.security.known_keys import KnownKeys
from api.security.limits import CallerLimits, FailedLogins, Usage
from api.security.problems import ForwardRefused, Unauthenticated
from api.security.tokens import TokenVerifier

PUBLIC_PATHS = frozenset({"/livez", "/readyz", documentation.DOCUMENT}) | documentation.PATHS
"""Paths of GET and HEAD requests without credentials: probes, and the description of the API."""

_ROUTES = "/v1/"
_CONSOLE = "/console/"
"""The pages of the console are public. They get their data through this gate, with the credentials of the user."""
_TO_THE_CONSOLE = ("/", "/console")
"""Paths that redirect to the console."""

_BEARER = "bearer "
_AUTHORIZATION, _IDEMPOTENCY_KEY = b"authorization", b"idempotency-key"
_HOP, _FORWARDED_TO = HOP.lower().encode(), FORWARDED_TO.lower().encode()
_HEADERS_OF_INSTANCES = (_HOP, _FORWARDED_TO)
_READ_HEADERS = frozenset({_AUTHORIZATION, _IDEMPOTENCY_KEY, *_HEADERS_OF_INSTANCES})
"""The headers of a request that the gate reads."""

NO_SNIFFING = b"x-content-type-options", b"nosniff"
_RESPONSE_HEADERS = [NO_SNIFFING]
# Only pages need these headers, because another page can frame a page, and a page can link to others. Another origin
# cannot embed the other responses: browsers do not send the header Authorization by themselves. Each header costs a
# fiftieth of a read.
_PAGE_HEADERS = [
    *_RESPONSE_HEADERS,
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_READS = frozenset({"GET", "HEAD"})
_FAILED, _STOPPED = HTTPStatus.INTERNAL_SERVER_ERROR.value, HTTPStatus.SERVICE_UNAVAILABLE.value


@dataclass(frozen=True, slots=True)
class Security:
    """Finds the callers of requests to an instance.

    Attributes:
        tokens: None if no issuer is set.
        accepts_unsigned_forwards: whether instances of release 0.1 may forward requests. They do not sign a request:
            they send Loyalty-Forwarded-To with the credentials of the caller. They may also read the report of this
            instance.
        cors_origins: the origins of web pages that may call the API.
    """

    keys: KnownKeys
    tokens: TokenVerifier | None
    hops: Hops
    limits: CallerLimits
    failed_logins: FailedLogins
    audit: RequestAudit
    accepts_unsigned_forwards: bool = False
    cors_origins: tuple[str, ...] = ()

    def verified_caller(self, scope: Scope) -> Caller | None:
        """The caller, if its token was verified before. None for other requests, which need ``admit``."""
        authorization: bytes | None = None
        for name, value in scope["headers"]:
            if name == _AUTHORIZATION:
                if authorization is not None:
                    return None
                authorization = value
            elif name in _HEADERS_OF_INSTANCES:
                return None
        return self.tokens.verified_caller(authorization) if authorization and self.tokens else None

    async def admit(self, scope: Scope, receive: Receive) -> tuple[Caller, Receive]:
        """The caller of an HTTP request, and the function that receives the body. Raises Problem."""
        given: dict[bytes, str] = {}
        for name, value in scope["headers"]:
            if name in _READ_HEADERS:
                if name == _AUTHORIZATION and name in given:
                    # A proxy may have checked only one of them.
                    raise Unauthenticated("The request has two headers Authorization")
                # Join two headers of the same name, so that the signature does not match. It covers one header, and
                # the routes would read the first one.
                given[name] = given.get(name, "") + value.decode("latin-1")
        authorization, hop, role = given.get(_AUTHORIZATION), given.get(_HOP), given.get(_FORWARDED_TO)
        if hop is not None:
            query = scope["query_string"]
            path: bytes = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
            request = HopRequest(scope["method"], path.decode("latin-1"), role or "", given.get(_IDEMPOTENCY_KEY, ""))
            verified = self.hops.verify(hop, request)
            return verified.caller, verified.checked(receive)
        if role is not None and not self.accepts_unsigned_forwards:
            raise ForwardRefused
        if authorization is None and self.accepts_unsigned_forwards and scope["path"] == REPORT_PATH:
            return UNSIGNED_INSTANCE, receive
        return await self._logged_in(authorization, scope), receive

    async def still_admits(self, scope: Scope, caller: Caller) -> bool:
        """Whether the credentials of an admitted request are still valid for its caller. Streams check it regularly.

        Always true for a forwarded request, because the instance that forwards it checks the credentials.
        """
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == _AUTHORIZATION]
        try:
            return caller.is_forwarded or await self._caller_with("".join(given)) == caller
        except Problem:
            return False

    async def _logged_in(self, authorization: str | None, scope: Scope) -> Caller:
        if authorization is None:
            raise Unauthenticated("The request has no credentials")
        # Credentials that were accepted before are not a guess, so they need no place in the limit of failed logins.
        # Otherwise a caller with wrong keys could lock out other callers behind the same proxy.
        if self.accepted_before(authorization):
            return await self._caller_with(authorization)
        address, _ = scope.get("client") or ("", 0)
        self.failed_logins.require_room(address)
        try:
            return await self._caller_with(authorization)
        except Unauthenticated:
            self.failed_logins.count(address)
            raise

    def accepted_before(self, authorization: str) -> bool:
        """Whether the credentials were accepted before. They may have expired or been revoked since."""
        text = authorization[len(_BEARER) :].strip()
        return self.keys.accepted_before(text) or (self.tokens is not None and self.tokens.accepted_before(text))

    async def _caller_with(self, authorization: str) -> Caller:
        if authorization[: len(_BEARER)].lower() != _BEARER:
            raise Unauthenticated("The header Authorization does not begin with Bearer")
        text = authorization[len(_BEARER) :].strip()
        if caller := self.keys.caller_of(text):
            return caller
        if self.tokens is None:
            raise Unauthenticated("The text after Bearer is not an API key, and this API accepts no tokens")
        return await self.tokens.caller_of(text)


def enter(scope: Scope, caller: Caller, limits: CallerLimits) -> Usage | None:
    """Put the caller and its usage into the scope, for the routes. Raises TooManyRequests.

    Returns the usage. Call ``leave_place`` when the request ends. Returns None for a forwarded request.
    """
    scope["caller"], scope["usage"] = caller, (usage := limits.usage(caller))
    if usage is not None:
        usage.take_place()
    return usage


def guarded(app: ASGIApp, security: Security, metrics: Metrics) -> ASGIApp:
    """Put the gate in front of an app. CORS comes before the gate, because a preflight request has no credentials."""
    gate = Gate(app, security, metrics)
    if not security.cors_origins:
        return gate
    return CORSMiddleware(
        gate,
        allow_origins=security.cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID"],
        expose_headers=["ETag", "Link", "Location", "Retry-After", *FRESHNESS],
    )


class Gate:
    """Lets requests of known callers pass, with the caller in ``scope["caller"]``."""

    def __init__(self, app: ASGIApp, security: Security, metrics: Metrics) -> None:
        self._app = app
        self._security = security
        self._requests = metrics.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        path, security = scope["path"], self._security
        status: int | None = None
        is_page = not path.startswith(_ROUTES) and (
            path in _TO_THE_CONSOLE or path.startswith(_CONSOLE) or (path in PUBLIC_PATHS and scope["method"] in _READS)
        )
        more_headers = _PAGE_HEADERS if is_page else _RESPONSE_HEADERS

        def send_safely(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = message["headers"] + more_headers
            return send(message)

        if is_page:
            await self._app(scope, receive, send_safely)
            return
        started = time.perf_counter()
        try:
            caller = security.verified_caller(scope)
            if caller is None:
                caller, receive = await security.admit(scope, receive)
            usage = enter(scope, caller, security.limits)
        except Problem as problem:
            await problem.response()(scope, receive, send_safely)
            route = scope["path"] if scope["path"] in INTERNAL_PATHS else "refused"
            self._requests.observe("other", route, problem.status.value, time.perf_counter() - started)
            return
        try:
            await self._app(scope, receive, send_safely)
        except asyncio.CancelledError:
            status = status or _STOPPED  # If no response has begun, the server sends the problem ``stopping``.
            raise
        finally:
            if usage is not None:
                usage.leave_place()
            security.audit.note(caller, scope, status or _FAILED)
