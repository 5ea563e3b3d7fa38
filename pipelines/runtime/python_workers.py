"""What Spark's Python workers do when they start."""

import gc
from functools import cache


@cache
def exclude_imports_from_garbage_collection() -> None:
    """Freeze all present objects, once in each worker: Spark collects garbage after every task and would visit them."""
    gc.freeze()
