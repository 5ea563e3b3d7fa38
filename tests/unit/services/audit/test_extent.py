"""The part of a topic that exists, from the offsets and the first records of its partitions."""

import pytest

from schemas.topics import POS_INVOICES
from services.audit import extent
from services.audit.extent import TopicExtent, extent_of
from services.settings import Settings

NOW = 1_000


@pytest.mark.parametrize(
    ("spans", "complete_from", "first_time"),
    [
        ({0: (0, 5), 1: (0, 5)}, 0, 100),
        ({0: (0, 0), 1: (0, 5)}, 0, 101),
        ({0: (0, 0), 1: (0, 0)}, 0, NOW),
        ({0: (3, 5), 1: (0, 5)}, 130, 0),
        ({0: (3, 5), 1: (5, 5)}, NOW, 0),
    ],
)
def test_the_extent_shows_lost_records_and_the_first_record(
    monkeypatch: pytest.MonkeyPatch, spans: dict[int, tuple[int, int]], complete_from: int, first_time: int
) -> None:
    """The first record shows that a topic was created again. After retention it shows nothing."""

    def first(_: object, __: str, partition: int, low: int, high: int, now: int) -> int:
        return 100 + partition + 10 * low if low < high else now

    monkeypatch.setattr(extent, "watermarks_of", lambda *_: spans)
    monkeypatch.setattr(extent, "first_append_time", first)
    begins, ends = ({partition: span[place] for partition, span in spans.items()} for place in (0, 1))
    assert TopicExtent(POS_INVOICES, begins, ends, complete_from, first_time) == extent_of(
        POS_INVOICES, Settings(), NOW
    )
