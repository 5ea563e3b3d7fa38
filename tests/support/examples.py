"""The number of examples of a property-based test."""

import os

_IS_SHORT = os.environ.get("TEST_EXAMPLES") == "few"


def examples(count: int, least: int = 5) -> int:
    """All examples in `make test`. With TEST_EXAMPLES=few (`make test-unit`), a quarter, but at least ``least``."""
    return min(count, max(least, count // 4)) if _IS_SHORT else count
