"""The stop signal of a process, without a wait."""

import threading


def without_wait() -> threading.Event:
    """A stop signal that does not come. Nobody waits for it."""
    stopping = threading.Event()
    stopping.wait = lambda _: False  # type: ignore[method-assign, assignment]
    return stopping
