"""The operator that drops repeats, without Spark's state."""

from collections.abc import Iterator
from datetime import timedelta

import pandas as pd

from pipelines.deduplication.operator import RepeatFilter


def test_invalid_records_leave_before_the_next_records_are_read() -> None:
    """A micro-batch is limited in records. So the values of all its invalid records may not fit into memory."""
    read = []

    def frames() -> Iterator[pd.DataFrame]:
        for offset in range(3):
            read.append(offset)
            yield pd.DataFrame({"offset": [offset, offset], "reason": ["a reason", None], "value": [b"value", None]})

    passed = RepeatFilter("fan-out", timedelta(days=18), ["offset", "value"]).handleInputRows(None, frames(), None)

    for offset in range(3):
        assert [(offset, b"value")] == [*next(passed).itertuples(index=False, name=None)]
        assert offset == read[-1]
