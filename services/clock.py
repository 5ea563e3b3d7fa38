"""The time of day, and a clock for leases."""

import time

# It includes the time in which the machine sleeps. CLOCK_MONOTONIC does not, and a lease would then last too long.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """Seconds since the machine was booted."""
    return time.clock_gettime(_CLOCK)


def now() -> int:
    """The time of day, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
