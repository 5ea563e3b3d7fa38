"""Log lines: to stderr, so that stdout stays for what was asked."""

import logging
import sys

import structlog

from services.settings import Settings


def configure_logging(settings: Settings) -> None:
    """Set up structlog, and the standard library's loggers with it, as the settings say."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    for_machines = settings.log_format == "json"
    if for_machines:
        shared.append(structlog.processors.format_exc_info)
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer() if for_machines else _for_people()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
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


def _for_people() -> structlog.dev.ConsoleRenderer:
    # Plain tracebacks: the default ones print local variables, and those hold card numbers.
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
