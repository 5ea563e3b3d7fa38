"""Traces: off without a receiver, and what spans have when it is on."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from infra.local.ports import HOST, free_port
from services import tracing
from services.errors import SettingsError
from services.logging import configure_logging
from services.open_telemetry import Exporter
from services.settings import Settings
from tests.support.traces import tracing_in_memory

ONE, TWO = ("00-" + digit * 32 + "-" + digit * 16 + "-01" for digit in "12")
UNSAMPLED = "00-" + "3" * 32 + "-" + "3" * 16 + "-00"

OFF = """
import sys
import api.__main__, pipelines.__main__, services.cli, services.ledger.__main__, services.webhooks.__main__
from pipelines.columns import traces
from services import tracing
from services.logging import configure_logging
from services.settings import Settings
tracing.start("test")
configure_logging(Settings())
with tracing.span("a", "server", [("traceparent", "00-" + "1" * 32 + "-" + "1" * 16 + "-01")]) as span:
    with tracing.batch("b", [[("traceparent", "00-" + "1" * 32 + "-" + "1" * 16 + "-01")]], "no time"):
        assert span is None and tracing.headers() == {} and not tracing.is_on()
app, records, headers = object(), object(), object()
assert app is api.__main__.traced(app)
assert (records, headers) == (traces.sample(records, None), traces.with_trace(headers))
assert [] == traces.columns()
assert [] == [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
assert sys.modules.keys().isdisjoint({"alembic", "confluent_kafka.schema_registry"})
"""


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with tracing_in_memory() as exporter:
        yield exporter


def parent(traceparent: str) -> tracing.Headers:
    """Headers as Kafka gives them."""
    return [("ce_id", b"A@1"), ("traceparent", traceparent.encode())]


def by_trace(spans: InMemorySpanExporter) -> dict[str, Any]:
    return {f"{span.context.trace_id:032x}": span for span in spans.get_finished_spans()}


@pytest.mark.program
def test_without_a_receiver_no_sdk_is_imported_and_no_span_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new process with the API, the pipeline, the ledger, the webhooks and the CLI, which has the simulator.

    FastAPI itself imports the API of OpenTelemetry. The start also leaves out other packages that it does not need.
    """
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    subprocess.run([sys.executable, "-c", OFF], check=True, timeout=120)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
    ],
)
def test_the_variables_of_opentelemetry_turn_tracing_on(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    expected: bool,  # noqa: FBT001
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert expected == tracing.has_receiver()


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
)
def test_an_unknown_exporter_or_protocol_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """The message says what to set."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=rf"{value}.*set (otlp|http/protobuf)"):
        tracing.start("test")
    assert not tracing.is_on()


def test_a_span_continues_the_trace_of_its_headers(spans: InMemorySpanExporter) -> None:
    """The headers of the block name the span. Without a sampled parent there is no span."""
    with tracing.span("outer", "server", parent(ONE)):
        inner = tracing.headers()["traceparent"]
    with tracing.span("outer", "server", parent(UNSAMPLED)):
        assert tracing.headers()["traceparent"].startswith(UNSAMPLED[:35])
    (span,) = spans.get_finished_spans()
    assert (int("1" * 32, 16), int("1" * 16, 16)) == (span.context.trace_id, span.parent.span_id)
    assert f"00-{'1' * 32}-{span.context.span_id:016x}-01" == inner


@pytest.mark.usefixtures("spans")
def test_headers_of_others_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise each record and request could write a line of any length, with a card in it."""
    for text in (b"x" * 600, b"card 4711", ONE.encode()):
        given: tracing.Headers = [
            ("traceparent", text),
            ("tracestate", b"4711 " * 200),
            ("tracestate", b"a=4711,a=4711"),
        ]
        with tracing.batch("apply", [given]), tracing.span("outer", "server", given):
            pass
    assert [] == caplog.records


def test_a_span_has_the_type_of_an_error_and_not_its_text(spans: InMemorySpanExporter) -> None:
    """Texts of errors can contain cards."""
    with pytest.raises(ValueError, match="4711"), tracing.span("a", "client"):
        raise ValueError("card 4711")
    with pytest.raises(ValueError, match="4711"), tracing.batch("b", [parent(ONE)]):
        raise ValueError("card 4711")
    for span in spans.get_finished_spans():
        assert "4711" not in span.to_json()
        assert ("ValueError", StatusCode.ERROR) == (span.attributes["error.type"], span.status.status_code)
    assert ["a", "b"] == [span.name for span in spans.get_finished_spans()]


def test_a_batch_has_a_span_in_each_sampled_trace(spans: InMemorySpanExporter) -> None:
    """The first span links to the records of the others, and they link to it. It is the current span."""
    records = [None, parent(UNSAMPLED), parent(ONE), parent(ONE), parent("damaged"), parent(TWO)]
    with tracing.batch("apply", iter(records)):
        present = tracing.headers()["traceparent"]
    found = by_trace(spans)
    assert {"1" * 32, "2" * 32} == found.keys()
    assert {"1" * 16, "2" * 16} == {f"{span.parent.span_id:016x}" for span in found.values()}
    first, other = found["1" * 32], found["2" * 32]
    assert [int("2" * 32, 16)] == [link.context.trace_id for link in first.links]
    assert [first.context.span_id] == [link.context.span_id for link in other.links]
    assert f"{first.context.span_id:016x}" in present


def test_a_large_batch_has_few_spans(spans: InMemorySpanExporter) -> None:
    records = [parent(f"00-{number:032x}-{number:016x}-01") for number in range(1, 1000)]
    with tracing.batch("apply", records):
        pass
    assert tracing.MOST_SPANS == len(spans.get_finished_spans())


def test_log_lines_have_the_ids_of_the_present_span(spans: InMemorySpanExporter) -> None:
    """Lines of structlog and of the standard library have the ids as JSON. Without a span a line has no ids."""
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers, logging.getLogger().level
    configure_logging(Settings(log_format="json"))
    output = io.StringIO()
    root.handlers[0].setStream(output)  # type: ignore[attr-defined]
    try:
        with tracing.span("a", "server"):
            logging.getLogger("test").warning("inside")
        logging.getLogger("test").warning("outside")
    finally:
        root.handlers, root.level = handlers, level
    inside, outside = map(json.loads, output.getvalue().splitlines())
    (span,) = spans.get_finished_spans()
    assert (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}") == (inside["trace_id"], inside["span_id"])
    assert not {"trace_id", "span_id"} & outside.keys()


def test_a_receiver_that_is_away_costs_one_line_and_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says that spans are dropped. At its end a process tries to send one batch of the waiting spans."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{HOST}:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    exporter = Exporter()
    with structlog.testing.capture_logs() as lines:
        assert [SpanExportResult.FAILURE] * 2 == [exporter.export([]), exporter.export([])]
    assert ["the receiver of traces does not take spans; they are dropped"] == [line["event"] for line in lines]
    exporter.end()
    monkeypatch.setattr(OTLPSpanExporter, "export", lambda *_: pytest.fail("it tries again"))
    assert SpanExportResult.FAILURE is exporter.export([])
