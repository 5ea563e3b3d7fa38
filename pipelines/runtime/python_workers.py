"""The start of Spark's Python workers."""

import gc
from functools import cache


@cache
def exclude_imports_from_garbage_collection() -> None:
    """Freeze all existing objects, once in each worker. Otherwise Spark's collection after every task visits them."""
    gc.freeze()
