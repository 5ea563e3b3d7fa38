"""The timers of one bucket of accounts: which cards to process at which time.

Spark's own timer only names a time. The cards of a timer are in parts, because a single list would be rewritten
whole whenever a card is added.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from pipelines.accounts.state_calls import map_calls

_TIMER = T.StructType([T.StructField("timer", T.LongType())])
_PARTS = T.StructType([T.StructField("parts", T.IntegerType())])
_PART = T.StructType([T.StructField("timer", T.LongType()), T.StructField("part", T.IntegerType())])
_CARDS = T.StructType([T.StructField("cards", T.ArrayType(T.StringType()))])


class Timers:
    """Timers in Spark's state. Times are milliseconds since the epoch."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._part_counts = map_calls(handle.getMapState("timers", _TIMER, _PARTS))
        self._cards_state = handle.getMapState("waiting", _PART, _CARDS)
        self._cards = map_calls(self._cards_state)

    def set(self, timers: Mapping[int, Sequence[str]]) -> None:
        """Add cards to timers."""
        if not timers:
            return
        ordered = sorted(timers)
        found = self._part_counts.get([(timer,) for timer in ordered])
        counts = {timer: value[0] if value else 0 for timer, value in zip(ordered, found, strict=True)}
        for timer in ordered:
            if not counts[timer]:
                self._handle.registerTimer(timer)
        self._cards.update(((timer, counts[timer]), (timers[timer],)) for timer in ordered)
        self._part_counts.update(((timer,), (counts[timer] + 1,)) for timer in ordered)

    def pop(self, timer: int) -> list[str]:
        """Remove a timer and return its cards."""
        (found,) = self._part_counts.get([(timer,)])
        self._part_counts.remove([(timer,)])
        parts = [(timer, part) for part in range(found[0] if found else 0)]
        cards = [card for value in self._cards.get(parts) if value for card in value[0]]
        self._cards.remove(parts)
        return sorted(set(cards))

    def erase(self, erased: Collection[str]) -> None:
        """Remove the cards of erased customers from all timers, so that nothing of them stays in the state."""
        if not erased:
            return
        parts = [(tuple(part), cards) for part, (cards,) in self._all_parts()]
        self._cards.update(
            (part, ([card for card in cards if card not in erased],))
            for part, cards in parts
            if not set(erased).isdisjoint(cards)
        )

    def _all_parts(self) -> Iterator[tuple[tuple[int, int], tuple[list[str]]]]:
        return self._cards_state.iterator()
