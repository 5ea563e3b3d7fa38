"""Waits for conditions. A test never waits for a fixed time."""

import time
from collections.abc import Callable

DEADLINE_SECONDS = 240.0
"""The longest wait for one condition on a busy machine."""

POLL_SECONDS = 0.05


def wait_for(what: str, is_so: Callable[[], object], seconds: float = DEADLINE_SECONDS) -> None:
    """Poll a condition until it is true. After the deadline, fails with the name of the condition."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(POLL_SECONDS)
