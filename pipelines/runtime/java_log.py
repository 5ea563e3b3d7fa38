"""The log of the JVM of this process, which also has what Python workers write to stderr."""

import json
import os
import re
from contextlib import suppress
from datetime import UTC, datetime

_NOISE = (
    # Java prints this line at each start, because Spark uses this module. No setting of Java prevents it.
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    # Spark's thread that removes old state files may still run when the pipeline stops.
    b"SparkEnv not active, cannot do maintenance on StateStores",
)
_LINE = re.compile(r"(?P<timestamp>\S+Z) (?P<level>[A-Z]+) (?P<logger>\S+): (?P<event>.*)")
"""A line in the layout of log4j2.properties."""

_LEVELS = {"WARN": "warning", "FATAL": "critical"}


def forward(reading: int, *, as_json: bool) -> None:
    """Copy the lines of a pipe to stderr. ``as_json``: as JSON objects, with the names of ``services.logging``.

    If stderr refuses a line, for example because its disk is full, this line is lost, and the copy continues.
    """
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            if not any(noise in line for noise in _NOISE):
                with suppress(OSError):
                    os.write(2, _as_json(line) if as_json else line)


def _as_json(line: bytes) -> bytes:
    text = line.decode(errors="replace").rstrip()
    if text.startswith("{"):  # A Python worker uses the logging of this process.
        return line
    if match := _LINE.fullmatch(text):
        record = match.groupdict()
        record["level"] = _LEVELS.get(record["level"], record["level"].lower())
    else:  # a line of a stack trace
        record = {"event": text, "level": "error", "logger": "java", "timestamp": datetime.now(UTC).isoformat()}
    return json.dumps(record).encode() + b"\n"
