"""Logging to stderr. Stdout is for the output of commands."""

import logging
import sys

import stamina.instrumentation
import structlog

from services.settings import Settings


def configure_logging(settings: Settings) -> None:
    """Configure structlog and the loggers of the standard library."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
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
    # Stamina logs each retry. The code that retries logs when a state changes.
    stamina.instrumentation.set_on_retry_hooks([])
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
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


def _console_renderer() -> structlog.dev.ConsoleRenderer:
    # The default tracebacks print local variables, which contain card numbers.
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
