"""The gate in front of all routes: it knows the caller of each request, or refuses the request.

request of a peer, with Loyalty-Hop      ──► the peer's signature names the caller
request with Authorization: Bearer       ──► an API key, or a token of the issuer
request without                          ──► 401, except for the public paths
"""

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http import documentation
from api.http.metrics import Metrics
from api.http.problems import Problem
from api.routing.peer_client import FORWARDED_TO, REPORT_PATH
from api.security.audit import RequestAudit
from api.security.caller import UNSIGNED_INSTANCE, Caller
from api.security.hops import HOP, HopRequest, Hops
from api.security.known_keys import KnownKeys
from api.security.limits import CallerLimits
from api.security.problems import ForwardRefused, Unauthenticated
from api.security.tokens import TokenVerifier

PUBLIC_PATHS = frozenset({"/livez", "/readyz", "/openapi.json"}) | documentation.PATHS
"""Paths of GET and HEAD requests without credentials: probes, and the description of the API."""

_CONSOLE = "/console/"
"""The pages of the console are public. What they show comes through this gate, with the credentials of the user."""

_BEARER, _USUAL_BEARER = "bearer ", b"Bearer "
_AUTHORIZATION, _IDEMPOTENCY_KEY = b"authorization", b"idempotency-key"
_OF_INSTANCES = _HOP, _FORWARDED_TO = HOP.lower().encode(), FORWARDED_TO.lower().encode()
_RESPONSE_HEADERS = [(b"x-content-type-options", b"nosniff")]
# Only pages can be framed and refer to others. A page of another origin cannot embed other responses, because browsers
# send no credentials by themselves. Each header costs the server a fiftieth of a read.
_PAGE_HEADERS = [
    *_RESPONSE_HEADERS,
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_READS = frozenset({"GET", "HEAD"})
_FAILED = HTTPStatus.INTERNAL_SERVER_ERROR.value


@dataclass(frozen=True, slots=True)
class Security:
    """How an instance knows its callers.

    Attributes:
        tokens: None if no issuer is set.
        accepts_unsigned_forwards: whether a request with Loyalty-Forwarded-To and the caller's own credentials counts
            as forwarded, although no instance has signed it. Release 0.1 forwards so. Such an instance may also read
            the report of this one.
        cors_origins: the origins of web pages that may call the API.
    """

    keys: KnownKeys
    tokens: TokenVerifier | None
    hops: Hops
    limits: CallerLimits
    audit: RequestAudit
    accepts_unsigned_forwards: bool = False
    cors_origins: tuple[str, ...] = ()

    def known(self, scope: Scope) -> Caller | None:
        """The caller with a token that was verified before. None for all others: ``admit`` finds them out."""
        token: bytes | None = None
        for name, value in scope["headers"]:
            if name == _AUTHORIZATION:
                token = value
            elif name in _OF_INSTANCES:
                return None
        if token is None or self.tokens is None or not token.startswith(_USUAL_BEARER):
            return None
        return self.tokens.known(token[len(_USUAL_BEARER) :].decode("latin-1"))

    async def admit(self, scope: Scope, receive: Receive) -> tuple[Caller, Receive]:
        """The caller of an HTTP request, and what receives its body. Raises Problem."""
        authorization = hop = role = None
        idempotency_key = ""
        for name, value in scope["headers"]:
            if name == _AUTHORIZATION:
                authorization = value.decode("latin-1")
            elif name == _HOP:
                hop = value.decode("latin-1")
            elif name == _FORWARDED_TO:
                role = (role or "") + value.decode("latin-1")
            elif name == _IDEMPOTENCY_KEY:
                # The routes read the first of two headers. Two headers together differ from the signed one.
                idempotency_key += value.decode("latin-1")
        if hop is not None:
            query = scope["query_string"]
            path: bytes = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
            request = HopRequest(scope["method"], path.decode("latin-1"), role or "", idempotency_key)
            verified = self.hops.verify(hop, request)
            return verified.caller, verified.checked(receive)
        if role is not None and not self.accepts_unsigned_forwards:
            raise ForwardRefused
        if authorization is None and self.accepts_unsigned_forwards and scope["path"] == REPORT_PATH:
            return UNSIGNED_INSTANCE, receive
        return await self._caller_with(authorization), receive

    async def _caller_with(self, authorization: str | None) -> Caller:
        if authorization is None:
            raise Unauthenticated("The request has no credentials")
        if authorization[: len(_BEARER)].lower() != _BEARER:
            raise Unauthenticated("The header Authorization does not begin with Bearer")
        text = authorization[len(_BEARER) :].strip()
        if caller := self.keys.caller_of(text):
            return caller
        if self.tokens is None:
            raise Unauthenticated("The text after Bearer is not an API key, and this API accepts no tokens")
        return self.tokens.known(text) or await self.tokens.verify(text)


def guarded(app: ASGIApp, security: Security, metrics: Metrics) -> ASGIApp:
    """The app behind the gate. Browsers ask which origins are allowed before they send credentials."""
    gate = Gate(app, security, metrics)
    if not security.cors_origins:
        return gate
    return CORSMiddleware(
        gate,
        allow_origins=security.cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-None-Match"],
        expose_headers=["ETag", "Location", "Retry-After"],
    )


class Gate:
    """Lets the requests of known callers pass, with the caller in ``scope["caller"]``."""

    def __init__(self, app: ASGIApp, security: Security, metrics: Metrics) -> None:
        self._app = app
        self._security = security
        self._requests = metrics.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        path, security, status = scope["path"], self._security, _FAILED
        is_page = path == "/" or path.startswith(_CONSOLE) or (path in PUBLIC_PATHS and scope["method"] in _READS)
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
            caller = security.known(scope)
            if caller is None:
                caller, receive = await security.admit(scope, receive)
            scope["caller"] = caller
            security.limits.take_place(caller)
        except Problem as problem:
            await problem.response()(scope, receive, send_safely)
            self._requests.observe("other", "refused", problem.status.value, time.perf_counter() - started)
            return
        try:
            await self._app(scope, receive, send_safely)
        finally:
            security.limits.leave_place(caller)
            security.audit.note(caller, scope, status)
