"""The number of examples of a property-based test."""

import os

IS_RANDOM = os.environ.get("TEST_RANDOM") == "1"
"""Whether each run draws new examples."""
_IS_SHORT = os.environ.get("TEST_EXAMPLES") == "few"


def examples(count: int, least: int = 5) -> int:
    """All examples in `make test`. With TEST_EXAMPLES=few (`make test-unit`), a tenth, but at least ``least``."""
    return _part(10, count, least) if _IS_SHORT else count


def requests(count: int, least: int = 5) -> int:
    """Like ``examples``. In `make test` a quarter, because each takes long, unless each run draws new ones."""
    return examples(count, least) if IS_RANDOM or _IS_SHORT else _part(4, count, least)


def _part(parts: int, count: int, least: int) -> int:
    return min(count, max(least, count // parts))
