"""The spans of a process. Only this module imports OpenTelemetry; all others use ``services.tracing``."""

import atexit
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any, Self
from urllib.parse import urlsplit

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    StatusCode,
    format_span_id,
    format_trace_id,
    get_current_span,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.tracing import MOST_SPANS, TRACEPARENT, Headers

log = structlog.get_logger(__name__)

Attributes = Mapping[str, str | int]

_NANOSECONDS = 1_000_000_000
_PROPAGATOR = TraceContextTextMapPropagator()


class Spans:
    """Creates spans. A span has the type of an error, but not its text, because the text can contain a card."""

    def __init__(self, processor: SpanProcessor, resource: Resource | None = None) -> None:
        # OpenTelemetry warns about each invalid header. The warning has the header, which can contain anything.
        logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("retail-loyalty")

    @classmethod
    def to_receiver(cls, service: str) -> Self:
        """Creates spans that a thread sends to the receiver in the variables ``OTEL_…``."""
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
        exporter = Exporter()
        spans = cls(BatchSpanProcessor(exporter), Resource.create(named))
        # Exit handlers run in reverse order, so this one runs before that of the provider, which sends the last spans.
        atexit.register(exporter.end)
        return spans

    @contextmanager
    def span(self, name: str, kind: str, parent: Headers, attributes: Attributes) -> Iterator[Span]:
        """See ``tracing.span``."""
        context = _context_of(parent) if _traceparent(parent) else None
        span = self._tracer.start_span(name, context, SpanKind[kind.upper()], attributes)
        with _as_current([span]):
            yield span

    @contextmanager
    def batch(
        self, name: str, records: Iterable[Headers], started: str, seconds: float, attributes: Attributes
    ) -> Iterator[None]:
        """See ``tracing.batch``."""
        begin = int(datetime.fromisoformat(started).timestamp() * _NANOSECONDS) if started else None
        end = None if begin is None else begin + int(seconds * _NANOSECONDS)
        spans: list[Span] = []
        parents = _sampled(records)
        for parent in parents:
            linked = spans[:1] or [get_current_span(other) for other in parents[1:]]
            links = [Link(each.get_span_context()) for each in linked]
            spans.append(self._tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, links, begin))
        with _as_current(spans, end):
            yield

    def headers(self) -> dict[str, str]:
        """See ``tracing.headers``."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier


class Exporter(OTLPSpanExporter):
    """Sends spans over OTLP. It logs when the receiver stops answering, and when it answers again, but no retries.

    At the end of a process, OTLPSpanExporter sends all waiting spans, and each batch can wait for
    OTEL_EXPORTER_OTLP_TIMEOUT. This exporter stops after the first batch without an answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fails = self._ends = False
        # A URL can contain credentials.
        self._receiver = urlsplit(self._endpoint).netloc.rpartition("@")[2]
        self._reason = ""
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(self._note)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._fails and self._ends:
            return SpanExportResult.FAILURE
        result = super().export(spans)
        fails = result is not SpanExportResult.SUCCESS
        if fails and not self._fails:
            log.warning(
                "the receiver of traces does not take spans; they are dropped",
                receiver=self._receiver,
                reason=self._reason,
            )
        elif self._fails and not fails:
            log.info("the receiver of traces takes spans again", receiver=self._receiver)
        self._fails = fails
        return result

    def _note(self, line: logging.LogRecord) -> bool:
        """A filter of the log of OTLPSpanExporter. It drops each line, and keeps the text for the log of this class."""
        self._reason = line.getMessage()
        return False

    def end(self) -> None:
        """Stop after the next batch without an answer."""
        self._ends = True


def add_ids(_: Any, __: str, line: Any) -> Any:
    """A processor of structlog: adds trace_id and span_id of the current span."""
    context = get_current_span().get_span_context()
    if context.is_valid:
        line |= {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}
    return line


@contextmanager
def _as_current(spans: Sequence[Span], end: int | None = None) -> Iterator[None]:
    """Make the first span the current span, and end all spans after the block.

    Args:
        end: the end of the spans, in nanoseconds since the epoch; None for now.
    """
    first = use_span(spans[0], record_exception=False, set_status_on_exception=False) if spans else nullcontext()
    try:
        with first:
            yield
    except Exception as error:
        for each in spans:
            each.set_attribute("error.type", type(error).__qualname__)
            each.set_status(StatusCode.ERROR)
        raise
    finally:
        for each in spans:
            each.end(end)


def _sampled(records: Iterable[Headers]) -> list[Context]:
    """The contexts of the first sampled records, without duplicates."""
    found: dict[str, Context] = {}
    for record in records:
        text = _traceparent(record)
        if text and text not in found:
            context = _context_of(record)
            if get_current_span(context).get_span_context().trace_flags.sampled:
                found[text] = context
        if len(found) == MOST_SPANS:
            break
    return [*found.values()]


def _traceparent(record: Headers) -> str:
    return next((value for name, value in _texts(record) if name == TRACEPARENT), "")


def _context_of(record: Headers) -> Context:
    """The context that the headers name, without the current span."""
    return _PROPAGATOR.extract(dict(_texts(record)), Context())


def _texts(record: Headers) -> Iterator[tuple[str, str]]:
    for name, value in record.items() if isinstance(record, Mapping) else record or ():
        yield name, value.decode("latin-1") if isinstance(value, bytes) else value or ""
