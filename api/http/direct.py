"""Look-ups of single keys, without the framework's general machinery: the same endpoints, called straight away.

FastAPI walks its routers, opens three exit stacks and takes the endpoint's signature apart for each request, which
costs many times what the store takes. Here a signature is taken apart once. Whatever is not a good look-up goes
FastAPI's way, which has an answer for it; so what is declared, and what is said of errors, is in one place.
"""

import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, get_args
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.params import Header, Param, Path, Query
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.metrics import Metrics
from api.http.problems import InternalError, Problem


class _Parameter(NamedTuple):
    """A parameter of an endpoint; ``read`` makes its value out of its text, or raises ValidationError."""

    name: str
    read: Callable[[str], Any]


class _DirectRoute:
    """An endpoint whose parameters are a request and texts of its path, query and headers."""

    def __init__(self, route: APIRoute) -> None:
        self.path = route.path
        self._match = route.path_regex.match
        self.endpoint: Callable[..., Awaitable[Response]] = route.endpoint
        self._of_path: dict[str, _Parameter] = {}
        self._of_query: dict[str, _Parameter] = {}
        self._of_headers: dict[bytes, _Parameter] = {}
        for name, parameter in inspect.signature(route.endpoint).parameters.items():
            if parameter.annotation is not Request:
                self._add(name, parameter.annotation)

    def _add(self, name: str, annotation: Any) -> None:
        source = next(each for each in get_args(annotation) if isinstance(each, Param))
        parameter = _Parameter(name, TypeAdapter(annotation).validator.validate_python)
        match source:
            case Path():
                self._of_path[source.alias or name] = parameter
            case Query():
                self._of_query[source.alias or name] = parameter
            case Header():
                self._of_headers[(source.alias or name.replace("_", "-")).encode()] = parameter

    def arguments(self, scope: Scope) -> dict[str, Any] | None:
        """The endpoint's arguments, without those left to their defaults; None for the path of another route.

        Raises ValidationError.
        """
        found = self._match(scope["path"])
        if found is None:
            return None
        arguments = {}
        for alias, text in found.groupdict().items():
            name, read = self._of_path[alias]
            arguments[name] = read(text)
        if query := scope["query_string"]:
            # Of a parameter given twice the last counts, as with FastAPI.
            given = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
            for alias in given.keys() & self._of_query.keys():
                name, read = self._of_query[alias]
                arguments[name] = read(given[alias])
        for header, value in scope["headers"]:
            if header in self._of_headers:
                name, read = self._of_headers[header]
                arguments.setdefault(name, read(value.decode("latin-1")))
        return arguments


class DirectRoutes:
    """Answers GET requests for the given routes by itself, and counts them; passes the others on.

    Their endpoints have annotated parameters only, no dependencies, and read no body.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], metrics: Metrics) -> None:
        self._app = app
        self._requests = metrics.requests
        self._routes = [_DirectRoute(route) for route in routes if isinstance(route, APIRoute)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        started, response = time.perf_counter(), None
        route, arguments = found
        try:
            response = await route.endpoint(request=Request(scope, receive), **arguments)
        except Problem as problem:
            response = problem.response()
        except Exception:
            response = InternalError().response()
            raise  # the server logs it
        finally:
            if response is not None:  # None: the caller has gone
                await response(scope, receive, send)
                self._requests.observe("GET", route.path, response.status_code, time.perf_counter() - started)

    def _find(self, scope: Scope) -> tuple[_DirectRoute, Mapping[str, Any]] | None:
        try:
            for route in self._routes:
                if (arguments := route.arguments(scope)) is not None:
                    return route, arguments
        except ValidationError:
            pass  # FastAPI says what is wrong
        return None
