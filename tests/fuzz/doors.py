"""All doors by name."""

import logging

import structlog

from tests.fuzz import arguments, batches, files, kafka, web
from tests.fuzz.door import Door

DOORS: dict[str, Door] = {
    door.name: door for door in (*kafka.DOORS, *batches.DOORS, *files.DOORS, *web.DOORS, *arguments.DOORS)
}


def door_named(name: str) -> Door:
    """The door. The process then logs nothing of what the inputs cause."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return DOORS[name]
