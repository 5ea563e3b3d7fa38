"""Gaps in sequence numbers: services.ledger.accounts."""

from hypothesis import given
from hypothesis import strategies as st

from services.ledger.accounts import Gap, find_gaps


@given(st.lists(st.lists(st.integers(1, 40), max_size=10), max_size=6))
def test_gaps_are_the_missing_sequence_numbers(batches: list[list[int]]) -> None:
    """This holds below the highest number, for any order, batches and duplicates."""
    last, gaps = 0, list[Gap]()
    for batch in batches:
        last, gaps = find_gaps(last, gaps, batch)
    seen = {sequence for batch in batches for sequence in batch}
    assert max(seen, default=0) == last
    missing = [sequence for gap in gaps for sequence in range(gap.first, gap.last + 1)]
    assert sorted(set(range(1, last)) - seen) == sorted(missing)
    assert all(first.last + 1 < second.first for first, second in zip(sorted(gaps), sorted(gaps)[1:], strict=False))
