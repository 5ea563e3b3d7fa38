"""Garbage collection in Spark's Python workers."""

import gc
from itertools import count

_calls = count(1)


def freeze_at_second_task() -> None:
    """Exclude the objects that the first task has left from garbage collection. Call this at the start of a task.

    PySpark collects garbage after every task of a worker (``pyspark.daemon.manager``). It would visit all modules and
    caches each time, which took a third of a core with 200 invoices/s (docs/lab/queries.md). After the first task they
    are complete, and PySpark has just removed all garbage.
    """
    if next(_calls) == 2:  # noqa: PLR2004
        gc.freeze()
