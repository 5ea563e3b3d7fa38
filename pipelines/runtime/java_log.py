"""The log of the JVM of this process, which also has what Python workers write to stderr."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from select import select

_NOISE = (
    # Java prints this line at each start, because Spark uses this module. No setting of Java prevents it.
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    # Spark's thread that removes old state files may still run when the pipeline stops.
    b"SparkEnv not active, cannot do maintenance on StateStores",
)
_LINE = re.compile(r"(?P<timestamp>\S+Z) (?P<level>[A-Z]+) (?P<logger>\S+): (?P<event>.*)")
"""A line in the layout of log4j2.properties."""

_BEGIN = re.compile(rb"^(?=\{|\S+Z [A-Z]+ \S+: )|(?<=\}\n)", re.MULTILINE)
"""Where a record begins: at a line in this layout, and before and after a line of JSON. The other lines belong to the
record before them.
"""

_LEVELS = {"WARN": "warning", "FATAL": "critical"}
_PAUSE_SECONDS = 0.1
"""Java writes the lines of a record without such a pause."""

_LARGEST_RECORD = 2**20


def forward(reading: int, *, as_json: bool) -> None:
    """Copy the lines of a pipe to stderr. ``as_json``: as JSON objects, with the names of ``services.logging``.

    A stack trace is one object together with the line before it. If stderr refuses a line, for example because its disk
    is full, this line is lost, and the copy continues.
    """
    with os.fdopen(reading, "rb") as pipe:
        for record in _records(reading) if as_json else pipe:
            lines = [line for line in record.splitlines(keepends=True) if not any(noise in line for noise in _NOISE)]
            if lines:
                with suppress(OSError):
                    os.write(2, _as_json(lines) if as_json else b"".join(lines))


def _records(reading: int) -> Iterator[bytes]:
    """The records of a pipe. A record ends when another one begins, after a pause, and at the end of the pipe."""
    waiting = b""
    while True:
        has_paused = not select([reading], [], [], _PAUSE_SECONDS if waiting.endswith(b"\n") else None)[0]
        chunk = b"" if has_paused else os.read(reading, _LARGEST_RECORD)
        *records, waiting = _BEGIN.split(waiting + chunk)
        if not chunk or len(waiting) > _LARGEST_RECORD:
            records.append(waiting)
            waiting = b""
        yield from filter(None, records)
        if not chunk and not has_paused:
            return


def _as_json(lines: list[bytes]) -> bytes:
    if lines[0].startswith(b"{"):  # A Python worker uses the logging of this process.
        return b"".join(lines)
    first, *more = b"".join(lines).decode(errors="replace").rstrip().split("\n", 1)
    if match := _LINE.fullmatch(first):
        record = match.groupdict()
        record["level"] = _LEVELS.get(record["level"], record["level"].lower())
    else:  # Java or a Python worker has ended with an error that no logger wrote.
        record = {"event": first, "level": "error", "logger": "java", "timestamp": datetime.now(UTC).isoformat()}
    return json.dumps(record | ({"exception": more[0]} if more else {})).encode() + b"\n"
