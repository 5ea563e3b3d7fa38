"""The fast path of reads of single keys: it calls the endpoints of FastAPI routes without FastAPI.

FastAPI searches its routers, opens three exit stacks and resolves the parameters of the endpoint for each request. That
costs several times more than the read of the store. This module resolves the parameters once, at the start. FastAPI
still declares the routes and responds to requests that are not valid. Decision 0017 has the measurements.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.dependencies import Dependencies, Part
from api.http.problems import InternalError, Problem
from api.routing.peer_messages import note_role
from api.security.caller import Caller
from api.security.gate import NO_SNIFFING, enter, guarded
from api.security.problems import ForwardRefused

if TYPE_CHECKING:
    from fastapi._compat import ModelField

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_AUDITED = ("route", "path_params", "audit_details", "is_export")


class LookupApp(FastAPI):
    """FastAPI behind the fast path. It counts the requests of both, and serves HEAD as GET without a body."""

    def serve_lookups(self, routes: Iterable[BaseRoute], dependencies: Dependencies) -> None:
        """Serve GET requests for these routes. It must be called before the first request.

        The endpoints have only annotated parameters, their dependencies are ``Part``s and the
        permissions of their routes, and they do not read a body.
        """
        self._lookups = [_LookupRoute(route, dependencies) for route in routes if isinstance(route, APIRoute)]
        self._requests = dependencies.metrics.requests
        self._group = dependencies.local.membership.group
        security = dependencies.security
        # Requests with a known token skip the gate, unless there are CORS origins: its middleware adds their headers.
        self._security = None if security is None or security.cors_origins else security
        self._entry: ASGIApp = guarded(self._serve, security, dependencies.metrics) if security else self._serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        security = self._security
        if security is not None and scope["type"] == "http" and scope["method"] == "GET":
            caller = security.verified_caller(scope)
            if caller is not None and (found := self._find(scope)) is not None:
                await self._serve_lookup(found, scope, receive, send, caller)
                return
        await self._entry(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a lookup without FastAPI, and every other request with FastAPI. Refuse requests of other groups."""
        if scope["type"] == "http":
            try:
                note_role(scope, self._group)
            except ForwardRefused as problem:
                await problem.response()(scope, receive, send)
                self._requests.observe("other", "refused", problem.status.value, 0.0)
                return
        found = self._find(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        if found is None:
            await self._serve_other(scope, receive, send)
        else:
            await self._serve_lookup(found, scope, receive, send)

    async def _serve_lookup(
        self, found: "_Found", scope: Scope, receive: Receive, send: Send, known: Caller | None = None
    ) -> None:
        """Call the endpoint and send its response.

        The request of a ``known`` caller, whose token was verified before, skips the gate. So this method does the work
        of the gate. It writes no audit record, because the audit trail has no lookups of one key.
        """
        started, response, usage = time.perf_counter(), None, None
        route, arguments = found
        request = Request(scope, receive)
        try:
            if known is not None and self._security is not None:
                usage = enter(scope, known, self._security.limits)
            for permit in route.permissions:
                await permit(request)
            response = await route.endpoint(request=request, **arguments)
        except Problem as problem:
            response = problem.response()
        except Exception:
            response = InternalError().response()
            raise  # The server logs the error.
        finally:
            try:
                if response is not None:  # None: the request was cancelled.
                    if known is not None:
                        response.raw_headers.append(NO_SNIFFING)
                    await response(scope, receive, send)
                    self._requests.observe("GET", route.path, response.status_code, time.perf_counter() - started)
            finally:
                if usage is not None:
                    usage.leave_place()

    def _find(self, scope: Scope) -> "_Found | None":
        """The route and the arguments of a lookup; None for another request, and for a lookup that is not valid."""
        try:
            for route in self._lookups:
                if (arguments := route.arguments(scope)) is not None:
                    return route, arguments
        except (ValidationError, KeyError):
            pass  # FastAPI responds with the errors of the request.
        return None

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with FastAPI, and count it."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return

        if scope["method"] == "HEAD":
            as_get = {**scope, "method": "GET"}
            try:
                await self._serve(as_get, receive, _only_head(send))
            finally:
                # The audit trail reads these members from the scope of the HEAD request.
                scope.update({name: as_get[name] for name in _AUDITED if name in as_get})
            return
        status = 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started = time.perf_counter()
        try:
            await super().__call__(scope, receive, send_and_note)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "unmatched")
            self._requests.observe(method, route, status, time.perf_counter() - started)


def _only_head(send: Send) -> Send:
    """Send the headers only. The end of the response also ends an endless stream of events."""
    has_ended = False

    async def send_head(message: Message) -> None:
        nonlocal has_ended
        if has_ended:
            return
        if message["type"] == "http.response.body":
            has_ended = True
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await send(message)

    return send_head


class _Parameter(NamedTuple):
    """A parameter of an endpoint. ``parse`` converts its text, and raises ValidationError."""

    name: str
    parse: Callable[[str], Any]


@cache  # All apps share the routes.
def _parameter_of(field: "ModelField") -> _Parameter:
    annotation: Any = Annotated[field.field_info.annotation, field.field_info]
    return _Parameter(field.name, TypeAdapter(annotation).validator.validate_python)


class _LookupRoute:
    """An endpoint whose parameters are the request, parts of the app, and texts of its path, query and headers."""

    def __init__(self, route: APIRoute, dependencies: Dependencies) -> None:
        self.path = route.path
        # Without credentials every caller has every permission, so a check would only take time.
        required = route.dependencies if dependencies.security else ()
        self.permissions = [each.dependency for each in required if each.dependency]
        self._route = route
        self._match = route.path_regex.match
        self.endpoint: Callable[..., Awaitable[Response]] = route.endpoint
        needed = route.dependant
        parts = {each.name: each.call for each in needed.dependencies if each.name}
        self._parts = {name: getattr(dependencies, part.name) for name, part in parts.items() if isinstance(part, Part)}
        self._path = {each.alias: _parameter_of(each) for each in needed.path_params}
        self._query = {each.alias: _parameter_of(each) for each in needed.query_params}
        self._headers = {each.alias.encode(): _parameter_of(each) for each in needed.header_params}

    def arguments(self, scope: Scope) -> dict[str, Any] | None:
        """The arguments of the endpoint, without its defaults; None if the path belongs to another route.

        Raises ValidationError, and KeyError for a parameter that is unknown or given twice.
        """
        match = self._match(scope["path"])
        if match is None:
            return None
        texts = match.groupdict()
        # The permissions of the route read these two members.
        scope["path_params"], scope["route"] = texts, self._route
        arguments = dict(self._parts)
        for alias, text in texts.items():
            name, parse = self._path[alias]
            arguments[name] = parse(text)
        if query := scope["query_string"]:
            for alias, text in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
                name, parse = self._query[alias]
                if name in arguments:
                    raise KeyError(alias)  # The parameter is given twice.
                arguments[name] = parse(text)
        for header, value in scope["headers"]:
            if header in self._headers:
                name, parse = self._headers[header]
                # Two lines of a header are one list (RFC 9110, section 5.3).
                before = f"{arguments[name]}, " if name in arguments else ""
                arguments[name] = parse(before + value.decode("latin-1"))
        return arguments


_Found = tuple[_LookupRoute, Mapping[str, Any]]
"""The route of a request, and the arguments of its endpoint."""
