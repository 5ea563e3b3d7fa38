"""Strategies for histories of one account: batches of events in any order, and timers between them."""

from dataclasses import dataclass
from decimal import Decimal

from hypothesis import strategies as st

from services.domain.account.lots import Terms
from services.domain.account.model import Account
from services.domain.account.processor import advance, process
from services.domain.entries import Entry
from services.domain.events import (
    Absorb,
    Adjust,
    Block,
    Capture,
    Erase,
    Event,
    Purchase,
    Receive,
    Replace,
    Reserve,
    SentLot,
    Transfer,
    Unblock,
    Void,
)
from services.domain.programme import DAY, MINUTE, Period, Programme, Programmes, SpentReturns, Tier

CARD = "4711"
START = 1_790_000_000_000

_TIMES = st.integers(START, START + 60 * DAY) | st.integers(START, START + 10)
_IDS = st.integers(0, 12).map(str)
_POINTS = st.integers(1, 400)
_COMMAND = {"append_time": _TIMES, "command_id": _IDS.map("C{}".format)}
_REDEMPTIONS = _IDS.map("C{}".format)

PURCHASES = st.builds(
    Purchase,
    _TIMES,
    _IDS.map("I{}".format),
    st.integers(-30_000, 60_000).map(lambda cents: Decimal(cents) / 100),
    customer_type=st.sampled_from(["PRIME", "PRIME", "PRIME", "OTHER"]),
    original_invoice_number=st.none() | st.none() | _IDS.map("I{}".format),
)
EVENTS = st.one_of(
    PURCHASES,
    PURCHASES,
    st.builds(Reserve, **_COMMAND, points=_POINTS),
    st.builds(Capture, **_COMMAND, redemption_id=_REDEMPTIONS),
    st.builds(Void, **_COMMAND, redemption_id=_REDEMPTIONS),
    st.builds(Adjust, **_COMMAND, points=st.integers(-500, 500).filter(bool), allow_negative=st.booleans()),
    st.builds(Transfer, **_COMMAND, points=_POINTS, counterparty=st.sampled_from([CARD, "other"])),
    st.builds(
        Receive,
        **_COMMAND,
        counterparty=st.just("other"),
        lots=st.lists(st.builds(SentLot, _POINTS, st.just(0) | _TIMES), min_size=1, max_size=2).map(tuple),
    ),
    st.builds(Block, **_COMMAND),
    st.builds(Unblock, **_COMMAND),
    st.builds(Replace, **_COMMAND, counterparty=st.sampled_from([CARD, "other"])),
    st.builds(
        Absorb,
        **_COMMAND,
        counterparty=st.just("other"),
        part=st.builds(Account, st.just(1), lots=st.dictionaries(st.builds(Terms, st.just(0) | _TIMES), _POINTS)),
    ),
    st.builds(Erase, **_COMMAND),
)

PLAIN = Programme()
RICH = Programme(
    pending=3 * DAY,
    valid_for=20 * DAY,
    expiry_notice=5 * DAY,
    reserve_for=30 * MINUTE,
    spent_returns=SpentReturns.NEGATIVE_ALLOWED,
)
TIERED = Programme(
    version=1,
    effective_time=START + 2 * DAY,
    tier_period=Period.MONTH,
    tiers=(Tier("basic", 0), Tier("gold", 500, Decimal("1.5"))),
)


@dataclass(frozen=True)
class Processed:
    """The inputs and the outputs of the account processor."""

    events: list[Event]
    entries: list[Entry]
    account: Account | None
    programmes: Programmes
    sent: list[str]


def processed(steps: list[list[Event] | int], programmes: Programmes) -> Processed:
    """Process steps: batches of events, and times of timers (int). With an erasure, sorts the events by time first."""
    account, events, entries, sent, erased_time = None, [], [], [], 0
    steps = deduplicated(steps)
    if any(isinstance(event, Erase) for step in steps if isinstance(step, list) for event in step):
        steps = by_time(steps)
    for step in steps:
        if isinstance(step, int):
            outcome = advance(account, step, programmes) if account else None
        else:
            batch = [event for event in step if event.append_time > erased_time]
            events += batch
            outcome = process(account, batch, programmes, CARD)
            erased_time = max([erased_time, *(event.append_time for event in batch if isinstance(event, Erase))])
        if outcome:
            account = outcome.account
            entries += outcome.entries
            sent += outcome.sent
    return Processed(events, entries, account, programmes, sent)


def deduplicated(steps: list[list[Event] | int]) -> list[list[Event] | int]:
    """Drop events whose id came before, because in production the deduplication drops them before the accounts."""
    seen: set[str] = set()
    kept: list[list[Event] | int] = []
    for step in steps:
        if isinstance(step, int):
            kept.append(step)
        else:
            first: dict[str, Event] = {}
            for event in step:
                if event.event_id not in seen:
                    first.setdefault(event.event_id, event)
            seen.update(first)
            kept.append(list(first.values()))
    return kept


def by_time(steps: list[list[Event] | int]) -> list[list[Event] | int]:
    """Sort the events of all batches by append time, and move the timers between their neighbours."""
    times = sorted(event.append_time for step in steps if isinstance(step, list) for event in step)
    left = iter(sorted((e for step in steps if isinstance(step, list) for e in step), key=lambda e: e.append_time))
    ordered: list[list[Event] | int] = []
    for step in steps:
        if isinstance(step, list):
            ordered.append([next(left) for _ in step])
        elif times:
            taken = sum(len(each) for each in ordered if isinstance(each, list))
            before = times[taken - 1] if taken else times[0]
            after = times[taken] if taken < len(times) else START + 100 * DAY
            ordered.append(min(max(step, before), after))
    return ordered


_STEPS = st.lists(st.lists(EVENTS, max_size=4) | st.integers(START, START + 80 * DAY), max_size=10)
HISTORIES = st.builds(processed, _STEPS, st.sampled_from([Programmes((PLAIN,)), Programmes((RICH,))])) | st.builds(
    processed, _STEPS.map(by_time), st.sampled_from([Programmes((RICH, TIERED)), Programmes((PLAIN, TIERED))])
)
