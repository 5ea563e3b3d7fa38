"""Spans of requests: templates instead of paths, and one trace across a hop."""

import asyncio
from typing import Any

import httpx
from opentelemetry.sdk.trace import ReadableSpan

from api.http.server import server_of
from api.http.tracing import traced
from infra.local.ports import free_port
from services.settings import Settings
from tests.support.builders import CARD, balance
from tests.support.clusters import Callers, Group
from tests.support.traces import tracing_in_memory
from tests.unit.api.servers import app, exchange, running

TRACE, CLIENT = "1" * 32, "2" * 16
SAMPLED, UNSAMPLED = ({"traceparent": f"00-{TRACE}-{CLIENT}-{flags}"} for flags in ("01", "00"))
ROUTE = "/v1/customers/{card}/balance"


def ask(method: str, path: str, headers: dict[str, str]) -> tuple[httpx.Response, list[ReadableSpan], Group]:
    """Send a request to the first of two instances. The second owns everything. Returns the spans of both."""
    group = Group.of(2)
    group.share(lambda _: 1)
    group.write([balance(CARD, "1.00", 1)])

    async def run() -> httpx.Response:
        async with group.running() as callers:
            wrap(callers)
            return await callers.http.request(method, group.instances[0].url + path, headers=headers)

    with tracing_in_memory() as exporter:
        response = asyncio.run(run())
        return response, [*exporter.get_finished_spans()], group


def wrap(callers: Callers) -> None:
    """Serve the instances with spans, as ``python -m api`` does."""
    transport: Any = callers.http._transport
    for instance in callers.group.instances:
        transport._apps[instance.url] = httpx.ASGITransport(traced(instance.app))


def hop(group: Group) -> httpx.Request:
    (request,) = [each for each in group.sent if "loyalty-forwarded-to" in each.headers]
    return request


def test_a_forwarded_request_is_one_trace() -> None:
    """The client, the first instance, the forward and the second instance are each the parent of the next. No span has
    the card.
    """
    response, spans, group = ask("GET", f"/v1/customers/{CARD}/balance?maxLag=5", SAMPLED)
    assert 200 == response.status_code
    owner, forward, asked = spans
    assert [f"GET {ROUTE}", "forward", f"GET {ROUTE}"] == [each.name for each in spans]
    assert {TRACE} == {f"{each.context.trace_id:032x}" for each in spans}
    parents = [f"{each.parent.span_id:016x}" for each in (asked, forward, owner)]
    assert [CLIENT, f"{asked.context.span_id:016x}", f"{forward.context.span_id:016x}"] == parents
    assert {"http.request.method": "GET", "http.response.status_code": 200, "http.route": ROUTE} == dict(
        owner.attributes
    )
    assert not any(CARD in each.to_json() for each in spans)
    assert f"{forward.context.span_id:016x}" in hop(group).headers["traceparent"]


def test_a_request_that_waits_for_another_one_has_a_trace_of_its_own() -> None:
    """The server starts it at the end of the other one. Here a client sends both at once, over one connection."""
    first = b"GET / HTTP/1.1\r\nHost: a\r\ntraceparent: %s\r\n\r\n" % SAMPLED["traceparent"].encode()
    last = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    settings = Settings(api_port=free_port())
    with tracing_in_memory() as exporter:
        with running(server_of(traced(app), settings, None, 1)):
            assert 2 == exchange(settings, first + last).count(b'"answer"')
        one, other = exporter.get_finished_spans()
    assert (TRACE, None) == (f"{one.context.trace_id:032x}", other.parent)


def test_a_caller_decides_that_a_request_is_not_sampled() -> None:
    response, spans, group = ask("GET", f"/v1/customers/{CARD}/balance", UNSAMPLED)
    assert (200, []) == (response.status_code, spans)
    assert "00" == hop(group).headers["traceparent"].rpartition("-")[2]


def test_unknown_paths_and_probes_leave_nothing() -> None:
    """The span of an unknown path has no path. Probes have no span."""
    _, (span,), _ = ask("GET", f"/v1/nothing/{CARD}", {})
    assert ("GET", 404) == (span.name, span.attributes["http.response.status_code"])
    assert CARD not in span.to_json()
    assert [] == ask("GET", "/livez", {})[1]


def test_the_app_is_unchanged_while_tracing_is_off() -> None:
    app = Group.of(1).instances[0].app
    assert app is traced(app)
    with tracing_in_memory():
        assert app is not traced(app)
