"""The operator of the loyalty query, with the state calls that it makes."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.serializers import pickle_protocol
from pyspark.sql import Row

from pipelines.accounts import operator as operator_module
from pipelines.accounts import timers as timers_module
from pipelines.accounts.operator import AccountOperator
from pipelines.accounts.records import rows_of, writer_ids
from pipelines.accounts.state_layout import LAYOUT, LAYOUTS, layout_of
from pipelines.accounts.timers import PART_SIZE
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.runtime.state_calls import SHARED, decode
from pipelines.sources.clock import TIMER_DELAY
from services.codecs.events import command_record
from services.codecs.state import decode_account
from services.domain.account.model import Account, ErasureMarker
from services.domain.account.processor import advance, process
from services.domain.events import Adjust, Capture, Erase, Event, Purchase, Reserve, Transfer
from services.domain.programme import Programme, Programmes
from services.messaging.avro import record_encoder
from services.pseudonyms import KEY_BYTES, Pseudonyms
from tests.support.builders import IDS
from tests.support.state_server import StateServer, state_server

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
INTERVAL = 10_000
PSEUDONYMS = Pseudonyms(bytes(KEY_BYTES))
T = 1_770_000_000_000
"""A time that is a multiple of the interval."""

CardEvent = tuple[str, Event]


each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def dump(row: tuple[object, ...]) -> bytes:
    """Keys and values as the operator stores them in the first layout."""
    return pickle.dumps(row, pickle_protocol)


def load(value: bytes) -> Any:
    return pickle.loads(value)  # noqa: S301  # from the operator under test


def marker_key(card: str) -> tuple[str]:
    """The key of the marker of an erased card. No card is so long."""
    return (PSEUDONYMS.of(card).rjust(129),)


@contextmanager
def open_bucket(
    tmp_path: Path, programmes: Programmes, layout: str = "2"
) -> Iterator[tuple[AccountOperator, StateServer]]:
    """The operator with the state of one bucket, and the server that stores it."""
    with state_server(tmp_path / "socket") as (handle, server):
        operator = AccountOperator(programmes, writer_ids(IDS), INTERVAL, PSEUDONYMS, LAYOUTS[layout])
        operator.init(handle)
        yield operator, server


def purchase(card: str, number: str, time: int, amount: str = "100") -> CardEvent:
    return card, Purchase(time, number, Decimal(amount))


def row_of(card: str | None, time: int, event: bytes | None, traceparent: str | None = None) -> SimpleNamespace:
    """A row of the operator's input."""
    return SimpleNamespace(
        CustomerCardNo=card, append_time=time, event=event, news=None, number=None, traceparent=traceparent
    )


def process_batch(operator: AccountOperator, *events: CardEvent, traceparent: str | None = None) -> list[Row]:
    """The rows of these events, each with its card."""
    rows = [row_of(card, event.append_time, encode(card, event), traceparent) for card, event in events]
    return list(operator.handleInputRows((1,), iter(rows), None))


def encode(card: str, event: Event) -> bytes:
    if isinstance(event, Purchase):
        record = {"InvoiceNumber": event.invoice_number, "TotalAmount": float(event.total_amount)}
        encode = record_encoder("Purchase", IDS.id_of("Purchase"))
        return encode(record | {"StoreID": "", "CustomerType": "PRIME", "InvoiceLineItems": []})
    return record_encoder("LoyaltyCommand", IDS.id_of("LoyaltyCommand"))(command_record(card, event))


ALL_TIMERS = Programmes((Programme(pending=DAY, valid_for=30 * DAY),))


def set_three_timers(operator: AccountOperator, card: str) -> None:
    """Set a timer of an expiry, then an earlier one of a release, then an earlier one of a reservation."""
    process_batch(operator, (card, Adjust(append_time=T, command_id=f"A{card}", points=5_00)))
    process_batch(operator, purchase(card, card, T + 1))
    process_batch(operator, (card, Reserve(append_time=T + 1, command_id=f"R{card}", points=1)))


def set_clock(operator: AccountOperator, read_until: int) -> None:
    row = row_of(None, read_until, None)
    assert [] == list(operator.handleInputRows((1,), iter([row]), None))


def fire(operator: AccountOperator, timer: int, batch_time: int) -> Iterator[Row]:
    """Let one of Spark's timers expire."""
    values = SimpleNamespace(getCurrentProcessingTimeInMs=lambda: batch_time)
    return operator.handleExpiredTimer((1,), values, SimpleNamespace(getExpiryTimeInMs=lambda: timer))


def fire_all(operator: AccountOperator, server: StateServer, batch_time: int) -> list[Row]:
    """Let all of Spark's timers up to this time expire, as Spark does in a micro-batch."""
    rows: list[Row] = []
    for timer in sorted(timer for timer in server.timers if timer <= batch_time):
        rows += fire(operator, timer, batch_time)
        server.timers.discard(timer)
    return rows


def maps_of(server: StateServer) -> dict[str, dict[Any, Any]]:
    """The keys and values of each map, in any layout."""
    maps: dict[str, dict[Any, Any]] = {name: {} for name in ("timers", "waiting", "later", "postponed")}
    for variable, kept in server.kept.items():
        for key, value in kept.items():
            if variable == SHARED:
                name, encoded = load(key)
                maps.setdefault(name, {})[decode(encoded)] = decode(load(value)[0])
            else:
                maps.setdefault(variable, {})[load(key)] = load(value)
    return maps


def account_of(server: StateServer, card: str) -> Account:
    account, _ = maps_of(server)["accounts"][card,]
    return decode_account(bytes(account))


def assert_no_timers(server: StateServer) -> None:
    maps = maps_of(server)
    assert [{}] * 4 == [maps[name] for name in ("timers", "waiting", "later", "postponed")]


def listed_cards(server: StateServer) -> dict[int, list[list[str]]]:
    """By timer, the cards of its parts."""
    parts: dict[int, list[list[str]]] = {}
    for (timer, _), (cards,) in maps_of(server)["waiting"].items():
        parts.setdefault(timer, []).append(cards)
    return parts


def test_a_checkpoint_keeps_its_layout():
    """A checkpoint of release 0.1 names none. The layout of a newer release is refused."""
    assert LAYOUTS["1"] == layout_of("loyalty", {"query": "loyalty"})
    assert LAYOUTS["2"] == layout_of("loyalty", {LAYOUT: "2"})
    with pytest.raises(CheckpointMismatchError, match="newer release"):
        layout_of("loyalty", {LAYOUT: "3"})


@pytest.mark.parametrize("cards_at_once", [1, 1_000])
def test_cards_of_a_bucket_are_processed_independently(tmp_path, monkeypatch, cards_at_once):
    """Together they give the same rows as each card alone, in each batch, in the order of the cards."""
    monkeypatch.setattr(operator_module, "_CARDS_AT_ONCE", cards_at_once)
    programmes = Programmes()
    batches = [
        [purchase("b", "1", 1), purchase("a", "2", 2), purchase("b", "3", 3)],
        [purchase("c", "4", 4), purchase("b", "5", 5), purchase("b", "1", 6)],
    ]
    accounts, expected = {}, []
    for events in batches:
        for card in sorted({card for card, _ in events}):
            own = [event for whose, event in events if whose == card]
            outcome = process(accounts.get(card), own, programmes, card)
            accounts[card] = outcome.account
            expected += rows_of(card, outcome, writer_ids(IDS))
    with open_bucket(tmp_path, programmes) as (operator, _):
        assert expected == [row for events in batches for row in process_batch(operator, *events)]


@each_layout
def test_the_state_has_nothing_of_an_erased_customer(tmp_path, layout):
    """The card, its timers and its balance disappear. A marker under a pseudonym stays for ten days."""
    with open_bucket(tmp_path, ALL_TIMERS, layout) as (operator, server):
        for card in ("4711", "4712"):
            set_three_timers(operator, card)
        # A checkpoint of release 0.1 does not have the later timers of all cards.
        server.kept["later"].pop(dump(("4711",)), None)
        rows = process_batch(operator, purchase("4711", "1", T), ("4711", Erase(append_time=T + 2, command_id="C1")))
        assert [None] == [row.value for row in rows if row.topic == "loyalty-balances"]
        maps = maps_of(server)
        assert {"accounts", "waiting", "later"} == {name for name, kept in maps.items() if "4712" in str(kept)}
        assert [] == [name for name, kept in maps.items() if "4711" in str(kept)]
        pseudonym = PSEUDONYMS.of("4711")
        marker = decode_account(bytes(maps["accounts"][marker_key("4711")][0]))
        assert ErasureMarker(T + 2) == marker
        set_clock(operator, marker.next_due() + INTERVAL)
        fire_all(operator, server, marker.next_due() + DAY)
        assert [] == [name for name, kept in maps_of(server).items() if pseudonym in str(kept)]


def test_an_account_after_an_erasure_replaces_the_marker(tmp_path):
    """It opens after the erasure, although its invoice is older. The timer of the marker does not change it."""
    with open_bucket(tmp_path, Programmes()) as (operator, server):
        process_batch(operator, purchase("4711", "1", T))
        process_batch(operator, ("4711", Erase(append_time=T + 2, command_id="C1")))
        process_batch(operator, purchase("4711", "2", T + 1))
        assert T + 3 == (account := account_of(server, "4711")).opened_time
        assert marker_key("4711") not in maps_of(server)["accounts"]
        after = T + 30 * DAY
        set_clock(operator, after)
        assert [] == fire_all(operator, server, after)
        assert account == account_of(server, "4711")


@each_layout
def test_a_card_that_is_the_pseudonym_of_another_card_has_its_own_account(tmp_path, layout):
    """Nobody can open such an account now, but release 0.1 could. The other card buys, is erased, and buys again."""
    pseudonym = PSEUDONYMS.of("4711")
    with open_bucket(tmp_path, Programmes(), layout) as (operator, server):
        process_batch(operator, purchase(pseudonym, "1", T, "1000"))
        process_batch(operator, purchase("4711", "2", T + 1))
        assert [20_00, 2_00] == [account_of(server, card).total for card in (pseudonym, "4711")]
        process_batch(operator, ("4711", Erase(append_time=T + 2, command_id="C1")))
        process_batch(operator, purchase(pseudonym, "3", T + 3))
        process_batch(operator, purchase("4711", "4", T + 1))
        assert [22_00, 2_00] == [account_of(server, card).total for card in (pseudonym, "4711")]
        assert T + 3 == account_of(server, "4711").opened_time


@each_layout
def test_a_timer_processes_the_cards_that_it_lists(tmp_path, layout):
    """These are all cards with points due then, from any batch, each once. Afterwards the timer is gone."""
    programmes = Programmes((Programme(pending=DAY),))
    with open_bucket(tmp_path, programmes, layout) as (operator, server):
        process_batch(operator, purchase("4711", "1", 1))
        process_batch(operator, purchase("4712", "2", 2), purchase("4713", "3", 2 + INTERVAL))
        first, second = sorted(server.timers)
        assert (DAY + INTERVAL, DAY + 2 * INTERVAL) == (first - TIMER_DELAY, second - TIMER_DELAY)
        expected = []
        for card, number, time in (("4711", "1", 1), ("4712", "2", 2)):
            account = process(None, [purchase(card, number, time)[1]], programmes, card).account
            expected += rows_of(card, advance(account, first, programmes), writer_ids(IDS))
        set_clock(operator, first)
        assert expected == [*fire(operator, first, first)]
        assert [] == [*fire(operator, first, first)]
        set_clock(operator, second)
        assert ["4713"] == [row.key.decode() for row in fire(operator, second, second)][:1]
        assert_no_timers(server)


def test_timers_wait_for_unread_events(tmp_path):
    """A capture that was appended in time counts, though the machine's clock is past the reservation."""
    with open_bucket(tmp_path, Programmes((Programme(valid_for=365 * DAY),))) as (operator, server):
        process_batch(operator, purchase("4711", "1", T, "5000"))
        process_batch(operator, ("4711", Reserve(append_time=T + 1, command_id="R", points=1_000)))
        lapses = account_of(server, "4711").reservations["R"].lapses_time
        # The driver was stopped. Now there is a backlog: the clock is still before the capture.
        late = lapses + DAY
        set_clock(operator, lapses - 2 * MINUTE)
        assert [] == fire_all(operator, server, late)
        operator._read_until = 0  # the next micro-batch has no row of the clock
        assert [] == fire_all(operator, server, late + 1)
        capture = Capture(append_time=lapses - MINUTE, command_id="C", redemption_id="R")
        process_batch(operator, ("4711", capture))
        assert 9_000 == account_of(server, "4711").total
        set_clock(operator, late)
        assert [] == fire_all(operator, server, late + 2 * TIMER_DELAY), "nothing is due any more"
        assert [] == [timer for timer in server.timers if timer < late]
        assert {} == maps_of(server)["postponed"]


def test_a_timer_applies_no_change_after_the_time_of_the_clock(tmp_path):
    """A capture before the second lapse may be unread. The timer is later than both lapses."""
    with open_bucket(tmp_path, Programmes()) as (operator, server):
        process_batch(operator, purchase("4711", "1", T))
        reserves = [Reserve(append_time=T + delay, command_id=f"R{delay}", points=1) for delay in (0, TIMER_DELAY // 2)]
        process_batch(operator, *(("4711", each) for each in reserves))
        lapse = T + 15 * MINUTE
        set_clock(operator, lapse)
        assert ["loyalty"] == [row.topic for row in fire_all(operator, server, lapse + TIMER_DELAY)][:-1]
        assert ["R1000"] == [*account_of(server, "4711").reservations]


@each_layout
def test_a_card_keeps_a_timer_that_fires_after_a_later_one(tmp_path, layout):
    """The first timer is postponed until the second one fires. The card is then due at the third one, once."""
    with open_bucket(tmp_path, ALL_TIMERS, layout) as (operator, server):
        set_three_timers(operator, "4711")
        _, second, third = sorted(server.timers)
        assert [] == fire_all(operator, server, second - 1)
        set_clock(operator, second)
        rows = fire_all(operator, server, second)
        assert ["loyalty"] * 2 == [row.topic for row in rows if row.topic == "loyalty"], "a lapse and a release"
        assert {third: [["4711"]]} == listed_cards(server)
        set_clock(operator, third)
        fire_all(operator, server, third)
        assert 0 == account_of(server, "4711").total, "all points have expired"


@each_layout
def test_the_list_of_postponed_timers_does_not_grow(tmp_path, layout):
    """While the clock stands still, each micro-batch postpones the real timers only. All run when the clock moves on.

    An earlier release has also postponed the times at which Spark should ask again.
    """
    with open_bucket(tmp_path, Programmes((Programme(pending=DAY),)), layout) as (operator, server):
        process_batch(operator, purchase("4711", "1", T), purchase("4712", "2", T + INTERVAL))
        first, second = sorted(server.timers)
        late = second + DAY
        operator._timers.postpone([late - 2, late - 3], late - 1)
        for batch in range(5):
            assert [] == fire_all(operator, server, late + 500 * batch)
            assert sorted([first, second]) == sorted(
                timer for (timers,) in maps_of(server)["postponed"].values() for timer in timers
            )
        # A timer gets a card although it is postponed, and a new timer has the time at which Spark asks again.
        (until,) = server.timers
        process_batch(operator, purchase("4713", "3", T))
        operator._timers.add({until: ["4714"]})
        assert {first, second, until} == {timer for timer, _ in maps_of(server)["waiting"]}
        set_clock(operator, second)
        rows = fire_all(operator, server, late + DAY)
        assert ["4711", "4712", "4713"] == sorted(row.key.decode() for row in rows if row.topic == "loyalty")
        assert [until] == operator._timers.with_cards([first, second, until]), "it is later than the clock"
        set_clock(operator, until)
        fire_all(operator, server, until + 2 * DAY)
        assert_no_timers(server)


@each_layout
def test_many_postponed_timers_are_in_short_lists(tmp_path, monkeypatch, layout):
    """After a long stop, each of them rewrites one list. The time for all of them would grow with their square."""
    monkeypatch.setattr(timers_module, "PART_SIZE", 3)
    cards = [f"{number:02}" for number in range(10)]
    with open_bucket(tmp_path, Programmes((Programme(pending=DAY),)), layout) as (operator, server):
        process_batch(operator, *(purchase(card, card, T + int(card) * INTERVAL) for card in cards))
        timers = sorted(server.timers)
        late = timers[-1] + DAY
        for batch in range(3):
            assert [] == fire_all(operator, server, late + 500 * batch)
            lists = [postponed for (postponed,) in maps_of(server)["postponed"].values()]
            assert [3, 3, 3, 1] == sorted(map(len, lists), reverse=True)
            assert timers == sorted(timer for postponed in lists for timer in postponed)
        set_clock(operator, late)
        rows = fire_all(operator, server, late + DAY)
        assert cards == [row.key.decode() for row in rows if row.topic == "loyalty"]
        assert_no_timers(server)


@each_layout
def test_a_timer_lists_a_card_once(tmp_path, layout):
    """After 200 redemptions the timer of the points' expiry lists the card once, and an erasure is cheap."""
    with open_bucket(tmp_path, Programmes((Programme(valid_for=365 * DAY),)), layout) as (operator, server):
        process_batch(operator, purchase("4711", "1", T, "100000"))
        for number in range(200):
            now = T + number * 60 * MINUTE
            process_batch(operator, ("4711", Reserve(append_time=now, command_id=f"R{number}", points=1)))
            captured = Capture(append_time=now + 1, command_id=f"C{number}", redemption_id=f"R{number}")
            process_batch(operator, ("4711", captured))
            set_clock(operator, now + 59 * MINUTE)
            fire_all(operator, server, now + 59 * MINUTE + TIMER_DELAY)
        assert [[["4711"]]] == [*listed_cards(server).values()]
        before = len(server.requests)
        process_batch(operator, ("4711", Erase(append_time=now + 60 * MINUTE, command_id="E")))
        assert 16 > len(server.requests) - before


@each_layout
def test_a_card_is_processed_at_each_of_its_times(tmp_path, layout):
    """A later timer that already lists the card is used again after an earlier one, and its points expire in time."""
    programmes = Programmes((Programme(pending=DAY, valid_for=30 * DAY),))
    with open_bucket(tmp_path, programmes, layout) as (operator, server):
        process_batch(operator, purchase("4711", "1", T))
        process_batch(operator, purchase("4711", "2", T + DAY))
        kinds = []
        for day in range(1, 40):
            set_clock(operator, T + day * DAY)
            rows = fire_all(operator, server, T + day * DAY + TIMER_DELAY)
            kinds += [day for row in rows if row.topic == "loyalty"]
        assert [2, 31, 32] == kinds, "the second purchase released the first"
        assert_no_timers(server)


def test_many_cards_of_one_timer_need_little_memory(tmp_path):
    """The operator gives the first rows after it has read one part of the accounts, not all of them."""
    cards = [f"{number:05}" for number in range(2 * PART_SIZE + 100)]
    with open_bucket(tmp_path, Programmes((Programme(pending=DAY),))) as (operator, server):
        for start in range(0, len(cards), 300):
            process_batch(operator, *(purchase(card, card, T) for card in cards[start : start + 300]))
        ((timer, parts),) = listed_cards(server).items()
        assert [PART_SIZE, PART_SIZE, 100] == sorted(map(len, parts), reverse=True)
        set_clock(operator, timer)
        before = len(server.requests)
        rows = fire(operator, timer, timer)
        processed = {next(rows).key.decode()}
        assert 4 * PART_SIZE > len(server.requests) - before
        assert set(cards) == processed | {row.key.decode() for row in rows}


def test_the_timers_of_release_0_1_continue(tmp_path):
    """Their parts may be large, and may list a card many times. Each card is processed once, and new cards join."""
    with open_bucket(tmp_path, Programmes((Programme(pending=DAY),)), "1") as (operator, server):
        process_batch(operator, purchase("4711", "1", T), purchase("4712", "2", T))
        ((timer, _),) = listed_cards(server).items()
        server.kept["waiting"] = {
            dump((timer, 0)): dump((["4711"] * (PART_SIZE + 1),)),
            dump((timer, 1)): dump((["4711", "4712"],)),
        }
        server.kept["timers"][dump((timer,))] = dump((2,))
        process_batch(operator, purchase("4713", "3", T))
        set_clock(operator, timer)
        rows = [*fire(operator, timer, timer)]
        assert ["4711", "4712", "4713"] == [row.key.decode() for row in rows if row.topic == "loyalty"]
        assert_no_timers(server)


def test_records_have_the_trace_of_their_event(tmp_path):
    """Entry, balance, decision and credit. Two events of a micro-batch keep their traces apart."""
    with open_bucket(tmp_path, Programmes()) as (operator, _):
        entry, balance = process_batch(operator, purchase("4711", "1", T), traceparent="first")
        assert {"first"} == {entry.traceparent, balance.traceparent}
        transfer = Transfer(append_time=T + 1, command_id="t", points=100, counterparty="4712")
        rows = process_batch(operator, ("4711", transfer), traceparent="second")
        assert {"loyalty", "loyalty-balances", "loyalty-decisions", "loyalty-commands"} == {row.topic for row in rows}
        assert {"second"} == {row.traceparent for row in rows}
        events = [row_of("4711", T + 2, encode(*purchase("4711", number, T + 2)), number) for number in ("2", "3")]
        rows = list(operator.handleInputRows((1,), iter(events), None))
        assert ["2", "3"] == sorted(row.traceparent for row in rows if row.topic == "loyalty")
