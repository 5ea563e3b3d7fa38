"""The comparison of event streams with the changelog finds planted violations: tests.faults.streams."""

import pytest

from tests.faults.streams import compare

REVISIONS = {"card": {1, 2, 3, 4}}


@pytest.mark.parametrize(
    ("received", "found"),
    [
        pytest.param([1, 2, 3, 4], (0, 0, 0), id="all"),
        pytest.param([3, 4], (0, 0, 0), id="all since the first event"),
        pytest.param([1, 4], (2, 0, 0), id="lost"),
        pytest.param([1, 2, 3], (1, 0, 0), id="the last one lost"),
        pytest.param([1, 2, 2, 3, 4], (0, 1, 0), id="doubled"),
        pytest.param([1, 3, 2, 4], (0, 0, 1), id="out of order"),
    ],
)
def test_lost_doubled_and_disordered_events_are_found(received: list[int], found: tuple[int, int, int]) -> None:
    """The numbers of lost events, doubled events, and streams out of order."""
    assert found == compare(REVISIONS, {"card": received})
