"""How many examples a property gets."""

import os

_IS_SHORT = os.environ.get("TEST_EXAMPLES") == "few"


def examples(count: int) -> int:
    """All examples in `make test`. A quarter of them, but at least ten, with TEST_EXAMPLES=few (`make test-unit`)."""
    return max(10, count // 4) if _IS_SHORT else count
