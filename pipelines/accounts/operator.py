"""The stateful operator of the loyalty query: keeps accounts in Spark's state store and calls the domain's rules.

The operator groups cards into buckets, one for each shuffle partition. For each group Spark calls Python for the key,
for a record batch of output, and for each kind of state call. If each card were a group, these calls would cost more
than the account of a card with one invoice (docs/lab/queries.md). Inside a bucket each account is a value of its own.
The operator reads and writes it once in a micro-batch.

The next change of an account is *due* at an exact time (``Outcome.next_due``). The account's *timer* is this time,
rounded up to the timer interval. So accounts that are due at nearly the same time share a timer and a call.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from pipelines.accounts.invoice_index import WAITING, InvoiceIndex, News, decode_waiting
from pipelines.accounts.records import rows_of
from pipelines.accounts.state_layout import ACCOUNTS, Layout
from pipelines.accounts.timers import Timers
from pipelines.columns.python_workers import freeze_at_second_task
from pipelines.columns.types import struct
from pipelines.runtime.state_calls import StateMaps
from pipelines.sources.clock import TIMER_DELAY
from schemas.topics import Topic
from services.codecs.events import decode_event
from services.codecs.state import decode_account, encode_account
from services.domain.account import processor as accounts
from services.domain.account.model import Account, AccountState, ErasureMarker
from services.domain.invoice_index import IndexedInvoice
from services.domain.programme import Programmes
from services.domain.validation import LONGEST_TEXT
from services.pseudonyms import Pseudonyms

_CARDS_AT_ONCE = 1_000
"""The largest number of cards whose accounts the operator holds in memory at once."""

_CARD = struct(card="string")
_ACCOUNT = struct(account="binary", due="long")


class AccountOperator(StatefulProcessor):
    """Processes the events and timers of one bucket of accounts, and the news of one bucket of invoice numbers."""

    def __init__(
        self,
        programmes: Programmes,
        writer_ids: Mapping[Topic, int],
        interval: int,
        pseudonyms: Pseudonyms,
        layout: Layout,
    ) -> None:
        """Args: interval: milliseconds to which timers are rounded up."""
        self.layout = layout
        self._programmes = programmes
        self._writer_ids = dict(writer_ids)
        self._interval = interval
        self._pseudonyms = pseudonyms
        # The time of the clock. Spark makes an operator for each task, and processes its timers after all its rows.
        self._read_until = 0

    def init(self, handle: StatefulProcessorHandle) -> None:
        freeze_at_second_task()
        maps = StateMaps(handle, are_shared=self.layout.are_shared)
        self._accounts = maps.open(ACCOUNTS, _CARD, _ACCOUNT)
        self._timers = Timers(handle, maps)
        self._index = InvoiceIndex(handle, maps, self._programmes, self._writer_ids, WAITING // self.layout.buckets)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        by_card: dict[str, list[_Received]] = defaultdict(list)
        news = []
        for row in rows:
            if row.news:
                news.append(News(row.news, row.number, row.append_time, row.CustomerCardNo, row.event, row.traceparent))
            elif row.CustomerCardNo is None:
                self._read_until = row.append_time
            else:
                by_card[row.CustomerCardNo].append(_Received(row.append_time, bytes(row.event), row.traceparent))
        yield from self._index.process(news)
        cards = sorted(by_card)
        for start in range(0, len(cards), _CARDS_AT_ONCE):
            yield from self._process({card: by_card[card] for card in cards[start : start + _CARDS_AT_ONCE]})

    def _process(self, received: Mapping[str, Sequence["_Received"]]) -> Iterator[Row]:
        """Process all events of some cards."""
        traces: dict[str, str] = {}
        changes = _Changes()
        outcomes = {}
        for card, (before, timer) in self._load([*received]).items():
            events = []
            for append_time, encoded, traceparent in received[card]:
                event = decode_event(append_time, encoded)
                events.append(event)
                if traceparent:
                    traces[event.event_id] = traceparent
            outcomes[card] = outcome = accounts.process(before, events, self._programmes, card)
            former_key, key = self._key_of(card, before), self._key_of(card, outcome.state)
            if key != former_key:
                changes.removed.append(former_key)
                if isinstance(before, Account):
                    # The card of an erased account must leave its timers now, and not only when they fire.
                    changes.erased[card] = timer
            self._save(key, outcome.state, outcome.next_due, timer if key == former_key else 0, changes)
        self._write(changes)
        for card, outcome in outcomes.items():
            yield from rows_of(card, outcome, self._writer_ids, traces)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Process the timers up to the time of the clock, and postpone the others to the next micro-batch.

        Events from before a later timer may still be unread, and must be processed first.
        """
        expired = expiredTimerInfo.getExpiryTimeInMs()
        postponed = []
        for timer in (expired, *self._timers.pop_postponed(expired)):
            if timer - TIMER_DELAY > self._read_until:
                postponed.append(timer)
                continue
            for keys in self._timers.pop(timer):
                yield from self._advance(keys, timer)
        # A timer of Spark without cards has only started postponed timers. If it were postponed too, each micro-batch
        # would add a timer.
        if postponed := self._timers.with_cards(postponed):
            self._timers.postpone(postponed, timerValues.getCurrentProcessingTimeInMs() + 1)

    def _advance(self, keys: Sequence[str], expired: int) -> Iterator[Row]:
        """Process the keys of an expired timer, except keys that have another timer now."""
        states = {key: state for key, (state, timer) in self._read(keys) if state and timer == expired}
        # Timers up to this time may have fired already.
        later_timers = self._timers.next_later([*states], after=self._read_until + TIMER_DELAY)
        changes = _Changes()
        outcomes = {}
        for key, state in states.items():
            outcomes[key] = outcome = accounts.advance(state, self._read_until, self._programmes)
            self._save(key, outcome.state, outcome.next_due, later_timers[key], changes)
        self._write(changes)
        for key, outcome in outcomes.items():
            yield from rows_of(key, outcome, self._writer_ids)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        if initialState.account is None:
            waiting = tuple(decode_waiting(bytes(initialState.waiting or b"")))
            self._index.add(initialState.invoice, IndexedInvoice(initialState.owner, waiting))
            return
        changes = _Changes()
        state = decode_account(bytes(initialState.account))
        self._save(self._key_of(initialState.CustomerCardNo, state), state, state.next_due(), 0, changes)
        self._write(changes)

    def close(self) -> None:
        """Nothing is open."""

    def _load(self, cards: Sequence[str]) -> dict[str, tuple[AccountState | None, int]]:
        """The state of each card (an account, a marker or None) and its timer (0: none)."""
        found = dict(self._read(cards))
        marker_keys = {self._marker_key(card): card for card, (state, _) in found.items() if state is None}
        return found | {marker_keys[key]: value for key, value in self._read([*marker_keys])}

    def _read(self, keys: Sequence[str]) -> Iterator[tuple[str, tuple[AccountState | None, int]]]:
        """Each key with its state (None: none) and its timer (0: none)."""
        for key, value in zip(keys, self._accounts.get([(key,) for key in keys]), strict=True):
            yield key, (decode_account(bytes(value[0])), value[1]) if value else (None, 0)

    def _key_of(self, card: str, state: AccountState | None) -> str:
        return self._marker_key(card) if isinstance(state, ErasureMarker) else card

    def _marker_key(self, card: str) -> str:
        # A card has at most LONGEST_TEXT characters, and can be the pseudonym of another card.
        return self._pseudonyms.of(card).rjust(LONGEST_TEXT + 1)

    def _save(
        self, key: str, state: AccountState | None, next_due: int | None, timer: int, changes: "_Changes"
    ) -> None:
        """Save or remove the state. Set an earlier timer if a change is due before the current timer (0: none)."""
        if state is None:
            changes.removed.append(key)
            return
        needed = -(-next_due // self._interval) * self._interval + TIMER_DELAY if next_due is not None else 0
        if needed and (not timer or needed < timer):
            changes.timers[needed].append(key)
            if timer:
                changes.former_timers[key] = timer
            timer = needed
        changes.accounts.append(((key,), (encode_account(state), timer)))

    def _write(self, changes: "_Changes") -> None:
        self._accounts.update(changes.accounts)
        if changes.removed:
            self._accounts.remove((key,) for key in changes.removed)
        if changes.erased:
            self._timers.erase(changes.erased)
        if changes.timers:
            self._timers.add_later(changes.former_timers)
            self._timers.add(changes.timers)


class _Received(NamedTuple):
    """An event from Spark. ``decode_event`` decodes it."""

    append_time: int
    encoded: bytes
    traceparent: str | None


@dataclass
class _Changes:
    """The changes of a bucket's state.

    Attributes:
        accounts: the new values of the map of accounts.
        removed: keys to remove from the map of accounts.
        erased: cards to remove from all timers, each with its timer (0: none).
        timers: by the time of a new timer, the keys to process.
        former_timers: by key, the timer that an earlier one has replaced.
    """

    accounts: list[tuple[tuple[str], tuple[bytes, int]]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    erased: dict[str, int] = field(default_factory=dict)
    timers: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    former_timers: dict[str, int] = field(default_factory=dict)
