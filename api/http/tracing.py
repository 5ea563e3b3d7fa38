"""A span for each request, with its method, the template of its route and its status, but no path and no query."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services import tracing

INTERNAL_PATHS = frozenset({"/livez", "/readyz", "/metrics", "/v1/instances/local"})
"""The paths that probes, Prometheus and peers request every few seconds."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def traced(app: ASGIApp) -> ASGIApp:
    """The app with spans; the app itself while tracing is off. A request with a traceparent continues its trace."""
    if not tracing.is_on():
        return app

    async def with_span(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in INTERNAL_PATHS:
            await app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        parent = [(name.decode("latin-1"), value) for name, value in scope["headers"] if name.startswith(b"trace")]
        with tracing.span(method, "server", parent, **{"http.request.method": method}) as span:

            async def send_and_note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            try:
                await app(scope, receive, send_and_note)
            finally:
                if route := getattr(scope.get("route"), "path", None):
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)

    return with_span
