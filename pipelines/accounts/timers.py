"""The timers of one bucket of accounts: the cards to process at each time.

Spark's timers have a time and no cards. This module stores the cards of each timer in parts of limited size. So a new
card rewrites only one part, and many cards at one time need little memory.

A timer lists the marker of an erased account by the card's pseudonym. A card has one next timer. If it gets an earlier
one, the former timer still lists the card, and is one of the card's later timers. When the former timer becomes the
next one again, the card is already listed. So a timer lists each card once.
"""

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from pipelines.columns.types import struct
from pipelines.runtime.state_calls import StateMaps

PART_SIZE = 500
"""Cards in a part, and postponed timers in a list."""

_PART_COUNTS = "timers"
_TIMER = struct(timer="long")
_PARTS = struct(parts="integer")
_PART = struct(timer="long", part="integer")
_CARDS = struct(cards=T.ArrayType(T.StringType()))
_CARD = struct(card="string")
_TIMERS = struct(timers=T.ArrayType(T.LongType()))


class Timers:
    """Timers in Spark's state. Times are milliseconds since the epoch."""

    def __init__(self, handle: StatefulProcessorHandle, maps: StateMaps) -> None:
        self._handle = handle
        self._maps = maps
        self._part_counts = maps.open(_PART_COUNTS, _TIMER, _PARTS)
        self._cards = maps.open("waiting", _PART, _CARDS)
        self._later_timers = maps.open("later", _CARD, _TIMERS)
        self._postponed = maps.open("postponed", _TIMER, _TIMERS)
        self._last_until = 0

    def add(self, timers: Mapping[int, Sequence[str]]) -> None:
        """Add cards to timers that do not list them."""
        ordered = sorted(timers)
        found = self._part_counts.get([(timer,) for timer in ordered])
        counts = {timer: value[0] if value else 0 for timer, value in zip(ordered, found, strict=True)}
        for timer in ordered:
            if not counts[timer]:
                self._handle.registerTimer(timer)
        last_parts = [(timer, counts[timer] - 1) for timer in ordered if counts[timer]]
        last_cards = dict(zip(last_parts, self._cards.get(last_parts), strict=True))
        parts = {}
        for timer in ordered:
            first = max(0, counts[timer] - 1)
            value = last_cards.get((timer, first))
            # A part of an older release may be larger.
            cards = [*(value[0] if value else ()), *timers[timer]]
            for start in range(0, len(cards), PART_SIZE):
                parts[timer, first + start // PART_SIZE] = cards[start : start + PART_SIZE]
            counts[timer] = first + -(-len(cards) // PART_SIZE)
        self._cards.update((part, (cards,)) for part, cards in parts.items())
        self._part_counts.update(((timer,), (counts[timer],)) for timer in ordered)

    def pop(self, timer: int) -> Iterator[list[str]]:
        """Remove a timer, and yield its cards part by part."""
        (found,) = self._part_counts.get([(timer,)])
        for part in range(found[0] if found else 0):
            (value,) = self._cards.get([(timer, part)])
            cards = sorted(set(value[0])) if value else []
            # A part of an older release may be larger.
            for start in range(0, len(cards), PART_SIZE):
                yield cards[start : start + PART_SIZE]
            self._cards.remove([(timer, part)])
        self._part_counts.remove([(timer,)])

    def with_cards(self, timers: Sequence[int]) -> list[int]:
        """Those of these timers that list cards. ``add`` registers the others again if they get cards."""
        found = self._part_counts.get([(timer,) for timer in timers])
        return [timer for timer, value in zip(timers, found, strict=True) if value]

    def postpone(self, timers: Sequence[int], until: int) -> None:
        """Process these timers again when Spark's timer at ``until`` fires, or a few milliseconds later.

        After a long stop thousands of timers are postponed in one micro-batch, and each call rewrites a list. So a full
        list gets no more timers, and the next millisecond has the next list.
        """
        self._last_until = max(until, self._last_until)
        while True:
            (found,) = self._postponed.get([(self._last_until,)])
            if not found or len(found[0]) < PART_SIZE:
                break
            self._last_until += 1
        if not found:
            self._handle.registerTimer(self._last_until)
        self._postponed.update([((self._last_until,), (sorted({*(found[0] if found else ()), *timers}),))])

    def pop_postponed(self, until: int) -> list[int]:
        """Remove and return the timers that were postponed until then."""
        (found,) = self._postponed.get([(until,)])
        if found:
            self._postponed.remove([(until,)])
        return list(found[0]) if found else []

    def add_later(self, former: Mapping[str, int]) -> None:
        """Remember the former timers of cards that have got an earlier timer."""
        cards = [*former]
        found = self._later_timers.get([(card,) for card in cards])
        self._later_timers.update(
            ((card,), ([former[card], *(value[0] if value else ())],)) for card, value in zip(cards, found, strict=True)
        )

    def next_later(self, cards: Sequence[str], after: int) -> dict[str, int]:
        """For each card, remove and return the next of its later timers; 0 if it has none after this time."""
        found = self._later_timers.get([(card,) for card in cards])
        later = {
            card: sorted(timer for timer in value[0] if timer > after)
            for card, value in zip(cards, found, strict=True)
            if value
        }
        self._later_timers.update(((card,), (timers[1:],)) for card, timers in later.items() if timers[1:])
        self._later_timers.remove((card,) for card, timers in later.items() if not timers[1:])
        return {card: later[card][0] if later.get(card) else 0 for card in cards}

    def erase(self, erased: Mapping[str, int]) -> None:
        """Remove these cards, each with its timer (0: none), from all timers. So the state no longer has them."""
        found = self._later_timers.get([(card,) for card in erased])
        self._later_timers.remove((card,) for card in erased)
        timers = {timer for timer in erased.values() if timer}
        timers.update(timer for value in found if value for timer in value[0])
        # A checkpoint of release 0.1 does not store the later timers of all cards. Its maps are variables.
        timers.update(timer for (timer,) in self._maps.keys_of(_PART_COUNTS))
        ordered = sorted(timers)
        counts = self._part_counts.get([(timer,) for timer in ordered])
        for timer, count in zip(ordered, counts, strict=True):
            parts = [(timer, part) for part in range(count[0] if count else 0)]
            for part, value in zip(parts, self._cards.get(parts), strict=True):
                if value and not erased.keys().isdisjoint(value[0]):
                    self._cards.update([(part, ([card for card in value[0] if card not in erased],))])
