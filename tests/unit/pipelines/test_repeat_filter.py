"""The operator that drops repeats, without Spark."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from pipelines.deduplication.operator import FIRST_HASH, ORDER, SECOND_HASH, TIME, RepeatFilter
from pipelines.deduplication.stream import shortest_memory
from services.settings import Settings
from tests.support.state_server import state_server


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


def test_an_identity_passes_again_only_after_the_time_to_remember(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A duplicate may wait in its topic as long as the horizon, and its first record too. Then the state forgets it."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    day = 86_400_000
    with state_server(tmp_path / "socket") as (handle, server):
        repeats = RepeatFilter("fan-out", shortest_memory(Settings()), [TIME])
        repeats.init(handle)

        def rows(now: int, identity: int = 1) -> pd.DataFrame:
            monkeypatch.setattr(handle._statefulProcessorApiClient, "get_timestamps", lambda _: (now, -1))
            return pd.DataFrame(identity, index=[0], columns=[FIRST_HASH, SECOND_HASH, *ORDER]).assign(**{TIME: now})

        repeats.handleInitialState((0,), rows(0), None)
        times = (18 * day, 20 * day, 21 * day)
        passed = [[*each[TIME]] for now in times for each in repeats.handleInputRows((0,), iter([rows(now)]), None)]
        assert [[], [20 * day], []] == passed
        assert 1 == len([*repeats.handleInputRows((0,), iter([rows(40 * day, identity=2)]), None)])
        (kept,) = server.kept.values()
        assert 2 == len(kept), "the list of segments and the new segment"
