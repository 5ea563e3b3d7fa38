"""Spans that tests read: kept in memory, or received over OTLP."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services import tracing
from services.open_telemetry import Spans
from tests.support.webhooks import TRACES, Receiver


@contextmanager
def tracing_in_memory() -> Iterator[InMemorySpanExporter]:
    """Turn tracing on in this process. Yields the finished spans."""
    exporter = InMemorySpanExporter()
    tracing.Switch.spans = Spans(SimpleSpanProcessor(exporter))
    try:
        yield exporter
    finally:
        tracing.Switch.spans = None


@dataclass(frozen=True)
class ReceivedSpan:
    """A span that a process has sent.

    Attributes:
        process: its service.name.
        links: the trace ids of the linked spans.
        text: the whole span as text, including its attributes.
    """

    process: str
    name: str
    trace: str
    identity: str
    parent: str
    links: frozenset[str]
    text: str


def received_spans(receiver: Receiver) -> list[ReceivedSpan]:
    """All spans that an OTLP receiver has received so far."""
    return [span for request in [*receiver.of(TRACES)] for span in _spans(request.body)]


def _spans(body: bytes) -> Iterator[ReceivedSpan]:
    request: Any = ExportTraceServiceRequest.FromString(body)
    for of_process in request.resource_spans:
        process = next(each.value.string_value for each in of_process.resource.attributes if each.key == "service.name")
        for scope in of_process.scope_spans:
            for each in scope.spans:
                links = frozenset(link.trace_id.hex() for link in each.links)
                ids = (each.trace_id.hex(), each.span_id.hex(), each.parent_span_id.hex())
                yield ReceivedSpan(process, each.name, *ids, links, str(each))
