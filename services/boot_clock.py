"""A clock for promises between machines."""

import time

# Unlike CLOCK_MONOTONIC it goes on while the machine sleeps: a lease must not outlive a closed lid.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """Seconds since the machine was booted; it never goes backwards and never stops."""
    return time.clock_gettime(_CLOCK)
