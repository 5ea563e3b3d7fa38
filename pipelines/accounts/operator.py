"""The accounts in Spark's state store: the operator carries them in and out, the rules are the domain's.

Customers are grouped into buckets. For every group Spark makes a trip to Python to name its key and a record batch of
its output, which for one customer with one invoice cost more than the account itself (docs/benchmarks.md). Inside a
bucket each account is a value of its own, read and written once a micro-batch.
"""

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from pipelines.accounts.state_calls import MapCalls
from schemas.topics import LOYALTY, LOYALTY_BALANCES, LOYALTY_COMMANDS, LOYALTY_DECISIONS, Topic
from services.codecs.events import credit_record, decode_event
from services.codecs.records import balance_record, decision_record, notification_record
from services.codecs.state import decode_account, encode_account
from services.domain.account import processor as accounts
from services.domain.account.model import Account, Outcome
from services.domain.entries import Entry, Kind
from services.domain.events import Event
from services.domain.programme import Programmes
from services.messaging.avro import Record, record_encoder
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings

STATE_VERSION = "2"
"""Of what follows; a checkpoint with another one cannot go on."""

BUCKETS_A_PARTITION = 16

EVENT_TYPE = T.StructType(
    [
        T.StructField("CustomerCardNo", T.StringType()),
        T.StructField("append_time", T.LongType()),
        T.StructField("event", T.BinaryType()),
    ]
)
"""What happens to an account; ``event`` is a framed Purchase or LoyaltyCommand, under the ids of schemas/ids.json."""

RECORD_TYPE = T.StructType(
    [
        T.StructField("topic", T.StringType()),
        T.StructField("id", T.StringType()),
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
    ]
)
"""What comes of it: the name of a topic without prefix, the record's CloudEvents id, its key and its framed value."""

WRITTEN = (LOYALTY, LOYALTY_BALANCES, LOYALTY_DECISIONS, LOYALTY_COMMANDS)

ACCOUNTS = "accounts"
"""The state variable: for each bucket a map from card to account, its bytes and for when a timer is set (0: none)."""

_CARD = T.StructType([T.StructField("card", T.StringType())])
_ACCOUNT = T.StructType([T.StructField("account", T.BinaryType()), T.StructField("due", T.LongType())])
_TIMER = T.StructType([T.StructField("timer", T.LongType())])
_PARTS = T.StructType([T.StructField("parts", T.IntegerType())])
_PART = T.StructType([T.StructField("timer", T.LongType()), T.StructField("part", T.IntegerType())])
_CARDS = T.StructType([T.StructField("cards", T.ArrayType(T.StringType()))])


def bucket_of(settings: Settings) -> Column:
    """The bucket of the column CustomerCardNo; the same for the life of a checkpoint, as ``shuffle_partitions`` is."""
    buckets = BUCKETS_A_PARTITION * settings.shuffle_partitions
    return F.pmod(F.xxhash64("CustomerCardNo"), F.lit(buckets)).cast("int").alias("bucket")


def account_records(
    events: DataFrame, programmes: Programmes, ids: SchemaIds, settings: Settings, initial: DataFrame | None
) -> DataFrame:
    """Events in, rows of EVENT_TYPE, each once; rows of RECORD_TYPE out.

    Args:
        initial: accounts to begin with (CustomerCardNo string, account binary as encode_account gives it); looked
            at in the first micro-batch of a new checkpoint alone.
    """
    interval = int(settings.timer_interval.total_seconds() * 1000)
    accounts_before = None if initial is None else initial.withColumn("bucket", bucket_of(settings)).groupBy("bucket")
    processor = CustomerAccounts(programmes, writer_ids(ids), interval)
    return (
        events.withColumn("bucket", bucket_of(settings))
        .groupBy("bucket")
        .transformWithState(
            statefulProcessor=processor,
            outputStructType=RECORD_TYPE,
            outputMode="Append",
            timeMode="ProcessingTime",
            initialState=accounts_before,
        )
    )


def writer_ids(ids: SchemaIds) -> dict[Topic, int]:
    """The schema ids of what is written; asked for at the driver, as the workers may not reach a registry."""
    return {topic: ids.writer_id(topic) for topic in WRITTEN}


class CustomerAccounts(StatefulProcessor):
    """Keeps the accounts of a bucket of customers, and wakes each when its time comes."""

    def __init__(self, programmes: Programmes, writer_ids: Mapping[Topic, int], interval: int) -> None:
        self._programmes = programmes
        self._writer_ids = dict(writer_ids)
        self._interval = interval

    def init(self, handle: StatefulProcessorHandle) -> None:
        _leave_imports_alone()
        self._handle = handle
        self._accounts = MapCalls(handle.getMapState(ACCOUNTS, _CARD, _ACCOUNT))
        # Whom a timer wakes: a part for each micro-batch that added some, as a list would be rewritten whole each time.
        self._parts = MapCalls(handle.getMapState("timers", _TIMER, _PARTS))
        self._waiting_state = handle.getMapState("waiting", _PART, _CARDS)
        self._waiting = MapCalls(self._waiting_state)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        by_card: dict[str, list[Event]] = defaultdict(list)
        for row in rows:
            by_card[row.CustomerCardNo].append(decode_event(row.append_time, bytes(row.event)))
        changes = _Changes()
        outcomes = {}
        for card, (before, due) in self._get(sorted(by_card)):
            outcomes[card] = outcome = accounts.process(before, by_card[card], self._programmes, card)
            if outcome.account:
                self._put(card, outcome.account, due, changes)
            elif before:
                changes.forgotten.append(card)
        self._keep(changes)
        for card, outcome in outcomes.items():
            yield from rows_of(card, outcome, self._writer_ids)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        now, expired = timerValues.getCurrentProcessingTimeInMs(), expiredTimerInfo.getExpiryTimeInMs()
        changes = _Changes()
        outcomes = {}
        for card, (account, due) in self._get(self._woken_by(expired)):
            if account is None or due != expired:  # erased, or woken earlier meanwhile
                continue
            outcomes[card] = outcome = accounts.advance(account, now, self._programmes)
            self._put(card, outcome.account or account, 0, changes)
        self._keep(changes)
        for card, outcome in outcomes.items():
            yield from rows_of(card, outcome, self._writer_ids)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        changes = _Changes()
        self._put(initialState.CustomerCardNo, decode_account(bytes(initialState.account)), 0, changes)
        self._keep(changes)

    def close(self) -> None:
        """Nothing is held open."""

    def _get(self, cards: Sequence[str]) -> Iterator[tuple[str, tuple[Account | None, int]]]:
        """Each card with its account and for when a timer is set."""
        for card, value in zip(cards, self._accounts.get([(card,) for card in cards]), strict=True):
            yield card, (decode_account(bytes(value[0])), value[1]) if value else (None, 0)

    def _put(self, card: str, account: Account, due: int, changes: "_Changes") -> None:
        """Keep an account; one that is to be woken before ``due``, when its timer is set, gets a timer."""
        next_due = account.next_due()
        # Rounded up, so that those due at nearly the same time share a timer.
        timer = -(-next_due // self._interval) * self._interval if next_due is not None else 0
        if timer and (not due or timer < due):
            due = timer
            changes.timers[timer].append(card)
        changes.accounts.append(((card,), (encode_account(account), due)))

    def _keep(self, changes: "_Changes") -> None:
        self._accounts.update(changes.accounts)
        self._accounts.remove((card,) for card in changes.forgotten)
        if changes.forgotten:
            self._forget(set(changes.forgotten))
        self._set(changes.timers)

    def _forget(self, erased: set[str]) -> None:
        """Of an erased customer nothing stays, not even the name that a timer of next year would have called."""
        waiting = [(tuple(place), cards) for place, (cards,) in self._waiting_state.iterator()]
        self._waiting.update(
            (place, ([card for card in cards if card not in erased],))
            for place, cards in waiting
            if erased & set(cards)
        )

    def _set(self, timers: Mapping[int, Sequence[str]]) -> None:
        if not timers:
            return
        ordered = sorted(timers)
        parts = {
            timer: found[0] if found else 0
            for timer, found in zip(ordered, self._parts.get([(timer,) for timer in ordered]), strict=True)
        }
        for timer in ordered:
            if not parts[timer]:
                self._handle.registerTimer(timer)
        self._waiting.update(((timer, parts[timer]), (timers[timer],)) for timer in ordered)
        self._parts.update(((timer,), (parts[timer] + 1,)) for timer in ordered)

    def _woken_by(self, timer: int) -> list[str]:
        """Whom the timer was set for; forgets it."""
        (found,) = self._parts.get([(timer,)])
        self._parts.remove([(timer,)])
        places = [(timer, part) for part in range(found[0] if found else 0)]
        woken = [card for value in self._waiting.get(places) if value for card in value[0]]
        self._waiting.remove(places)
        return sorted(set(woken))


@cache
def _leave_imports_alone() -> None:
    """Once a worker: Spark collects garbage after every task, and would look through all that was ever imported."""
    gc.freeze()


@dataclass
class _Changes:
    """What a bucket's events change in the state.

    Attributes:
        accounts: the new values of the map of accounts.
        forgotten: cards whose account ended.
        timers: by when they are due, the cards that are to be woken then.
    """

    accounts: list[tuple[tuple[str], tuple[bytes, int]]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    timers: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))


_encoder = cache(record_encoder)


def rows_of(card: str, outcome: Outcome, writer_ids: Mapping[Topic, int]) -> Iterator[Row]:
    """What came of one customer's events as rows of RECORD_TYPE."""
    for topic, record_id, key, record in _records(card, outcome):
        value = None if record is None else _encoder(str(topic.value), writer_ids[topic])(record)
        yield Row(topic=topic.name, id=record_id, key=key.encode(), value=value)


def _records(card: str, outcome: Outcome) -> Iterable[tuple[Topic, str, str, Record | None]]:
    """Topic, id, key and record (None: a tombstone) of all that came of one customer's events."""
    for entry in outcome.entries:
        yield LOYALTY, _entry_id(card, entry), card, notification_record(card, entry)
    if outcome.entries:
        # Readers of the changelog take the newest, so one a micro-batch will do: of an account that was erased and
        # opened anew that is the new one's.
        last = outcome.entries[-1]
        balance = None if last.kind == Kind.ERASED else balance_record(card, last)
        yield LOYALTY_BALANCES, _entry_id(card, last), card, balance
    for decision in outcome.decisions:
        yield LOYALTY_DECISIONS, decision.command_id, decision.command_id, decision_record(card, decision)
    for command_id in outcome.forgotten:
        yield LOYALTY_DECISIONS, command_id, command_id, None
    for credit in outcome.credits:
        yield LOYALTY_COMMANDS, credit.command_id, credit.to_card, credit_record(card, credit)


def _entry_id(card: str, entry: Entry) -> str:
    return f"{card}@{entry.opened_time}.{entry.sequence}"
