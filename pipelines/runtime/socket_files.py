"""Lets Java forget the socket files of tasks that have ended."""

import threading
import time
from typing import Any

import structlog
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

log = structlog.get_logger(__name__)

_INTERVAL_SECONDS = 300.0


def forget_regularly(jvm: Any) -> None:
    """Call ``forget`` every five minutes until the JVM ends."""
    threading.Thread(target=_repeat, args=(jvm,), name="socket-files", daemon=True).start()


def forget(jvm: Any) -> None:
    """Empty the list of files that Java deletes when it ends.

    Spark makes a socket file for each task of a stateful query, deletes it at the end of the task, and also puts it on
    this list. Java keeps the list until it ends, so the heap of a driver under load would lose 100 to 170 MB a day
    (docs/lab/benchmarks.md). No public method of Java shortens the list. Other files on it stay until the next start
    deletes the temporary folder.
    """
    files = jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    files.setAccessible(True)
    files.set(None, jvm.java.util.LinkedHashSet())


def _repeat(jvm: Any) -> None:
    while True:
        time.sleep(_INTERVAL_SECONDS)
        try:
            forget(jvm)
        except Py4JJavaError as error:
            log.warning("Java keeps the paths of socket files, so its heap becomes full within days", reason=str(error))
            return
        except (Py4JError, OSError):
            return  # the JVM has ended
