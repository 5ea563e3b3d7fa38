"""Appending in both databases: entries, gaps and positions (services.ledger.appender)."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event

from services.ledger.appender import Appended, Appender, Batch
from services.ledger.database import LedgerError
from services.ledger.positions import PositionMovedError, Span, forget_positions
from services.ledger.records import Undecodable
from services.pseudonyms import Pseudonyms
from tests.support.builders import entry
from tests.support.examples import examples
from tests.support.ledger import EVERYTHING, PSEUDONYMS, TOPIC_ID, Ledger, expected, stored, texts
from tests.unit.services.ledger.erased_accounts import LIFE

ENTRIES = [("A", entry(1)), ("B", entry(1)), ("A", entry(2)), ("A", entry(3))]


def test_every_entry_is_appended_once(ledger: Ledger) -> None:
    """Duplicates in one batch or in later batches change nothing."""
    assert Appended(entries=3) == ledger.append(*ENTRIES[:3])
    assert Appended(entries=1) == ledger.append(*ENTRIES, *ENTRIES)
    assert expected(ENTRIES) == stored(ledger.engine)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=examples(15))
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_any_batches_give_the_same(ledger: Ledger, sizes: list[int], random: Any) -> None:
    """For any batches and duplicates the ledger has each entry once."""
    records = [(card, entry(sequence)) for card in "ABC" for sequence in range(1, 6)]
    stream = records + random.sample(records, 6)
    while stream:
        size = max(1, random.choice(sizes))
        ledger.append(*stream[:size])
        stream = stream[size:]
    assert expected(records) == stored(ledger.engine)
    assert [] == ledger.gaps()


class KilledError(Exception):
    """The simulated end of the process."""


@contextmanager
def killed(engine: Engine, moment: str, number: int) -> Iterator[None]:
    """End the process at this statement or commit, counted from 0."""
    left = count(number, -1)

    def die(*_: object) -> None:
        if next(left) == 0:
            raise KilledError

    event.listen(engine, moment, die)
    yield
    event.remove(engine, moment, die)


@pytest.mark.parametrize("moment", ["before_cursor_execute", "after_cursor_execute", "commit"])
def test_a_crash_at_any_point_doubles_and_loses_nothing(ledger: Ledger, moment: str) -> None:
    """After a crash at any point, the ledger has nothing of the transaction. The next process appends all of it."""
    ledger.append(*LIFE[:2])
    before = texts(ledger.engine)
    for crashes in count():
        process = Ledger(ledger.url)
        assert 2 == process.position, "offsets go with the entries"
        try:
            with killed(process.engine, moment, crashes):
                process.append(*LIFE[2:])
        except KilledError:
            assert before == texts(ledger.engine)
        else:
            break
        finally:
            process.close()
    assert crashes >= (1 if moment == "commit" else 8)
    assert expected(LIFE) == stored(ledger.engine)
    assert len(LIFE) == ledger.appender.open(TOPIC_ID, EVERYTHING, {})[0]


def test_two_processes_append_nothing_twice(ledger: Ledger) -> None:
    """The second process that appends the same records gets an error, and continues behind the first."""
    other = Ledger(ledger.url)
    ledger.append(*ENTRIES)
    with pytest.raises(PositionMovedError):
        other.append(*ENTRIES, ("C", entry(1)))
    assert expected(ENTRIES) == stored(ledger.engine)
    other.position = other.appender.open(TOPIC_ID, EVERYTHING, {})[0]
    other.append(("C", entry(1)))
    other.close()
    assert expected([*ENTRIES, ("C", entry(1))]) == stored(ledger.engine)


def test_a_gap_is_noted_until_it_is_filled(ledger: Ledger) -> None:
    """Missing sequence numbers are a gap. Later entries split the gap and fill it. The parts of a split gap are no new
    gaps.
    """
    assert Appended(3, gaps=1, gaps_opened=1) == ledger.append(("A", entry(1)), ("A", entry(6)), ("B", entry(1)))
    assert [(2, 5)] == ledger.gaps()
    assert Appended(2, gaps=1) == ledger.append(("A", entry(3)), ("A", entry(7)))
    assert [(2, 2), (4, 5)] == ledger.gaps()
    assert 2 == ledger.appender.count_gaps()
    filled = ledger.append(("A", entry(2)), ("A", entry(4)), ("A", entry(5)), ("A", entry(9)))
    assert (-1, 1) == (filled.gaps, filled.gaps_opened)
    assert [(8, 8)] == ledger.gaps()


def test_a_first_record_that_is_not_the_first_entry_is_a_gap(ledger: Ledger) -> None:
    """The gap shows the entries that the topic had deleted before the ledger first read it."""
    ledger.append(("A", entry(4)))
    assert [(1, 3)] == ledger.gaps()


def test_an_account_opened_again_is_another(ledger: Ledger) -> None:
    """An account with a later OpenedTime starts at sequence number 1. Its entries are neither duplicates nor gaps."""
    ledger.append(("A", entry(1)), ("A", entry(1, opened_time=9_000)), ("A", entry(2, opened_time=9_000)))
    assert 3 == len(stored(ledger.engine))
    assert [] == ledger.gaps()


def test_undecodable_records_move_the_position(ledger: Ledger) -> None:
    """When the topic is read again, the record can be stored again."""
    record = Undecodable(0, 0, 1_700_000_000_000, "no \0 magic")
    ledger.appender.append(Batch([], [record], {0: Span(0, 1)}))
    assert 1 == ledger.appender.open(TOPIC_ID, EVERYTHING, {})[0]
    with ledger.engine.begin() as connection:
        forget_positions(connection)
    with pytest.raises(PositionMovedError):
        ledger.appender.append(Batch([], [], {0: Span(1, 2)}))
    assert 0 == ledger.appender.open(TOPIC_ID, EVERYTHING, {})[0]
    ledger.appender.append(Batch([], [record], {0: Span(0, 1)}))


def test_an_undecodable_record_of_a_truncated_partition_is_read_again(ledger: Ledger) -> None:
    """The ledger has it already. An error would stop the ledger at this record for ever."""
    batch = Batch([], [Undecodable(0, 0, 1_700_000_000_000, "no magic")], {0: Span(0, 1)})
    ledger.appender.append(batch)
    assert {0: 0} == ledger.appender.open(TOPIC_ID, {0: (0, 0)}, {0: 1})
    ledger.appender.append(batch)


def test_a_process_that_does_not_know_the_new_topic_appends_nothing(ledger: Ledger) -> None:
    """The topic was created again, and another process has read it up to the same offset."""
    ledger.append(*ENTRIES)
    starts = {0: 4}
    ledger.appender.check(starts)
    other = Ledger(ledger.url)
    assert starts == other.appender.open("incarnation-2", {0: (4, 100)}, starts)
    other.close()
    with pytest.raises(PositionMovedError):
        ledger.append(("C", entry(1)))
    with pytest.raises(PositionMovedError):
        ledger.appender.check(starts)


@pytest.mark.parametrize(
    ("topic_id", "before", "marks", "start"),
    [
        (TOPIC_ID, 4, (0, 100), 4),
        (TOPIC_ID, 4, (2, 4), 4),
        (TOPIC_ID, 4, (7, 100), 7),
        (TOPIC_ID, 4, (1, 3), 1),
        (TOPIC_ID, 3, (1, 3), 4),
        ("incarnation-2", 4, (0, 100), 0),
    ],
    ids=["continues", "at the end", "deleted", "truncated", "another process appended meanwhile", "created again"],
)
def test_the_position_to_continue_from(
    ledger: Ledger, topic_id: str, before: int, marks: tuple[int, int], start: int
) -> None:
    """The ledger continues at the stored offset if the topic has it, and otherwise at the start of the topic."""
    ledger.append(*ENTRIES)
    again = Ledger(ledger.url)
    assert {0: 4} == again.appender.stored_offsets()
    assert {0: start} == again.appender.open(topic_id, {0: marks}, {0: before})
    again.appender.append(Batch([], [], {0: Span(start, start + 1)}))
    again.close()


def test_a_topic_created_again_can_have_fewer_partitions(ledger: Ledger) -> None:
    """The ledger forgets the position of a partition that is gone. Otherwise each check would fail."""
    marks = (0, 100)
    ledger.appender.open(TOPIC_ID, {0: marks, 1: marks}, {})
    starts = ledger.appender.open("incarnation-2", {0: marks}, ledger.appender.stored_offsets())
    ledger.appender.check(starts)
    assert {0: 0} == starts == ledger.appender.stored_offsets()


def test_a_ledger_stays_with_its_topic_and_its_key(ledger: Ledger) -> None:
    """The ledger refuses another topic and another pseudonym key, because they would create other accounts."""
    for appender in (
        Appender(ledger.engine, PSEUDONYMS, "other-loyalty"),
        Appender(ledger.engine, Pseudonyms(b"x" * 32), "loyalty"),
    ):
        with pytest.raises(LedgerError, match="made with another"):
            appender.set_up()


@pytest.mark.parametrize("card", ["ü" * 5_000, "a\0b", "'; DROP TABLE ledger_entry; --", "\U0001f6d2"])
def test_unusual_texts_are_appended(ledger: Ledger, card: str) -> None:
    """The ledger appends entries of long and unusual cards, each once."""
    odd = entry(1, reason="\U0001f6d2'", counterparty=card)
    assert 1 == ledger.append((card, odd)).entries
    assert 0 == ledger.append((card, odd)).entries
