"""Waits for conditions. A test never waits for a fixed time."""

import time
from collections.abc import Callable

DEADLINE_SECONDS = 240.0
"""The longest wait for one condition on a busy machine."""

POLL_SECONDS = 0.05
"""The pause before the next look. A test that measures a time, or that must act at once, needs a short one."""

REPORT_POLL_SECONDS = 0.25
"""The pause before the next question to all instances, or for a report. Each answer takes milliseconds of CPU time."""

TOPIC_POLL_SECONDS = 1.0
"""The pause before the next read of a whole topic."""


def wait_for(
    what: str, is_so: Callable[[], object], seconds: float = DEADLINE_SECONDS, poll: float = POLL_SECONDS
) -> None:
    """Poll a condition until it is true. After the deadline, fails with the name of the condition."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(poll)
