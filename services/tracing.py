"""Traces. They are off until ``start`` finds a receiver in OpenTelemetry's variables ``OTEL_…``.

While they are off, the process imports no module of OpenTelemetry, creates no span, and adds no header to records and
requests. Names and attributes of spans are templates, names of topics and types of errors: never a path, a key, a card
or the text of an error.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from services.errors import SettingsError

if TYPE_CHECKING:
    from services.open_telemetry import Spans

TRACEPARENT = "traceparent"
"""The header of a record or a request that names its trace (W3C Trace Context)."""

MOST_SPANS = 16
"""The largest number of records of one batch that get a span."""

Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None
"""Headers as confluent_kafka types them."""

_OFF: AbstractContextManager[Any] = nullcontext()
_PROTOCOL = "http/protobuf"


class Switch:
    """Holds the object that creates the spans of this process; None while tracing is off."""

    spans: "Spans | None" = None


def start(service: str) -> None:
    """Turn tracing on if the environment names a receiver of OTLP. At its end, the process sends the waiting spans.

    Args:
        service: the name of this process in the traces, unless OTEL_SERVICE_NAME gives another one.

    Raises:
        SettingsError: a variable asks for an exporter or a protocol that this project does not have.
    """
    if has_receiver():
        from services.open_telemetry import Spans  # noqa: PLC0415 - only a process with traces imports it

        Switch.spans = Spans.to_receiver(service)


def has_receiver() -> bool:
    """Whether the environment asks for traces. Raises SettingsError."""

    def value(*names: str) -> str:
        return next((found for name in names if (found := os.environ.get(name, "").strip())), "")

    exporter = value("OTEL_TRACES_EXPORTER")
    endpoint = value("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    protocol = value("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    if value("OTEL_SDK_DISABLED").lower() == "true" or exporter == "none" or not (exporter or endpoint):
        return False
    if exporter not in ("", "otlp"):
        raise SettingsError(f"OTEL_TRACES_EXPORTER is {exporter}, but only otlp is possible: set otlp, or none")
    if protocol not in ("", _PROTOCOL):
        raise SettingsError(f"the protocol of OTLP is {protocol}, but only {_PROTOCOL} is possible: set {_PROTOCOL}")
    return True


def is_on() -> bool:
    return Switch.spans is not None


def span(name: str, kind: str, parent: Headers = None, **attributes: str | int) -> AbstractContextManager[Any]:
    """A span around a block of code. Yields the span, or None while tracing is off.

    Args:
        kind: server, client or producer.
        parent: headers that name the parent. Without them the parent is the current span, if there is one.
    """
    return Switch.spans.span(name, kind, parent, attributes) if Switch.spans else _OFF


def batch(
    name: str,
    records: Iterable[Headers],
    started: str = "",
    seconds: float = 0.0,
    **attributes: str | int,
) -> AbstractContextManager[Any]:
    """Spans of a batch of records: one in the trace of each sampled record, at most MOST_SPANS.

    A batch can have many traces, but a span belongs to one trace. So the first span links to the other records, and the
    other spans link to the first one. While the block runs, the first span is the current span.

    Args:
        records: the headers of the records.
        started: the start of a batch that has ended already, in ISO 8601. Empty: the batch starts now.
        seconds: the duration of a batch that has ended already.
    """
    return Switch.spans.batch(name, records, started, seconds, attributes) if Switch.spans else _OFF


def headers() -> dict[str, str]:
    """The headers that make the current span the parent of the receiver's spans. Empty without a span."""
    return Switch.spans.headers() if Switch.spans else {}
