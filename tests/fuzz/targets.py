"""All fuzz targets by name."""

import logging

import structlog

from tests.fuzz import arguments, batches, files, kafka, web
from tests.fuzz.target import FuzzTarget

TARGETS: dict[str, FuzzTarget] = {
    target.name: target
    for target in (*kafka.TARGETS, *batches.TARGETS, *files.TARGETS, *web.TARGETS, *arguments.TARGETS)
}


def target_named(name: str) -> FuzzTarget:
    """The target with this name. Turns off the log of this process, because bad inputs cause many log lines."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return TARGETS[name]
