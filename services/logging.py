"""Logging to stderr. Stdout is for the output of commands."""

import faulthandler
import logging
import sys
import time
from collections import Counter

import stamina.instrumentation
import structlog

from services import tracing
from services.settings import Settings

_WARNING_SECONDS = 60.0


def configure_logging(settings: Settings) -> None:
    """Configure structlog and the loggers of the standard library."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if tracing.is_on():
        from services.open_telemetry import add_ids  # noqa: PLC0415 - only a process with traces imports it

        shared.append(add_ids)
    as_json = settings.log_format == "json"
    if as_json:
        shared.append(structlog.processors.format_exc_info)
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer() if as_json else _console_renderer()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    # Stamina would log each retry. Our code logs once when an error begins, and once when it ends.
    stamina.instrumentation.set_on_retry_hooks([])
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    # Their line for each request shows the URL, which can contain a password. The client of the registry uses httpx2.
    for client in ("httpx", "httpx2"):
        logging.getLogger(client).setLevel(logging.WARNING)
    # A crash in librdkafka or RocksDB would otherwise leave no line in the log.
    faulthandler.enable()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def log_to_stderr() -> None:
    """Make structlog write to stderr in a process that has not configured its log. structlog's default is stdout."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _console_renderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Each line looks stderr up, because a test replaces stderr for each command.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _console_renderer() -> structlog.dev.ConsoleRenderer:
    # The default tracebacks print local variables, which contain card numbers.
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)


class WarningLimit(logging.Filter):
    """Lets a warning with the same text pass at most once a minute, and counts the omitted ones.

    Use it for warnings that a client or a receiver can cause at any rate.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        # structlog's messages are dictionaries with the text and, among others, the time.
        event = record.msg if isinstance(record.msg, dict) else {"event": record.msg}
        text, now = str(event["event"]), time.monotonic()
        if now < self._next.get(text, now):
            self._left_out[text] += 1
            return False
        self._next[text] = now + _WARNING_SECONDS
        if left_out := self._left_out.pop(text, 0):
            more = f"{text.rstrip('.')}. Since the last such line, {left_out} more were left out."
            record.msg = {**event, "event": more} if event is record.msg else more
        return True
