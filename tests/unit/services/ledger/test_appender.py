"""Appending in both databases: services.ledger.appender."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event, select, update

import services.ledger.appender
from services.domain.entries import Kind
from services.ledger.appender import Appended, Appender, Batch
from services.ledger.database import LedgerError
from services.ledger.positions import PositionMovedError, Span, forget_positions
from services.ledger.records import CardEntry, Undecodable
from services.ledger.tables import ACCOUNT
from services.pseudonyms import Pseudonyms
from tests.support.builders import entry
from tests.support.examples import examples
from tests.support.ledger import EVERYTHING, PSEUDONYMS, TOPIC_ID, Ledger, expected, stored, texts

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


def test_an_erasure_beside_another_process_leaves_no_card(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has prepared a row that names a card. Before it commits, another process erases the card."""
    ledger.append(("CARD-X", entry(1)))
    other = Ledger(ledger.url)
    other.appender.open(TOPIC_ID, {0: EVERYTHING[0], 1: EVERYTHING[0]}, {})
    prepared, erased = Event(), Event()

    def prepare(*arguments: Any) -> Any:
        row = make_row(*arguments)
        if current_thread() is transfer:
            prepared.set()
            erased.wait(1)  # The erasure cannot end before this transaction, so this waits in vain.
        return row

    def erase() -> None:
        prepared.wait()
        ledger.append(("CARD-X", entry(2, kind=Kind.ERASED)))
        erased.set()

    make_row = services.ledger.appender._row
    monkeypatch.setattr("services.ledger.appender._row", prepare)
    sent = Batch([CardEntry("A", entry(1, kind=Kind.SENT, counterparty="CARD-X"))], [], {1: Span(0, 1)})
    transfer, erasure = Thread(target=other.appender.append, args=[sent]), Thread(target=erase)
    for thread in (transfer, erasure):
        thread.start()
    for thread in (transfer, erasure):
        thread.join()
    other.close()
    assert erased.is_set()
    assert 3 == len(stored(ledger.engine))
    assert "CARD-X" not in texts(ledger.engine)


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


def erased(sequence: int) -> Any:
    return entry(sequence, kind=Kind.ERASED, points=-100 * (sequence - 1), total=0, available=0)


WORDS = "for Anna"
LIFE = [
    ("4711", entry(1)),
    ("4711", entry(2, kind=Kind.ADJUSTED, reason=WORDS, actor="4711")),
    ("4711", entry(3, kind=Kind.REFUSED, points=0, reason="insufficient-points", actor="clerk")),
    ("4711", entry(4, kind=Kind.SENT, points=-50, reason=WORDS, counterparty="0815")),
    ("0815", entry(1, kind=Kind.RECEIVED, points=50, reason=WORDS, counterparty="4711", actor="4711")),
    ("4711", erased(5)),
]


def texts_after_erasure(ledger: Ledger, entries: list[tuple[str, Any]], cut: int) -> str:
    """Append the entries in two batches. The ledger must have all amounts, and neither the card nor the words."""
    for batch in (entries[:cut], entries[cut:]):
        if batch:
            ledger.append(*batch)
    found = texts(ledger.engine)
    assert "4711" not in found
    assert "Anna" not in found
    assert expected(entries) == stored(ledger.engine)
    return found


@pytest.mark.parametrize("cut", range(len(LIFE) + 1))
def test_an_erasure_deletes_card_and_texts(ledger: Ledger, cut: int) -> None:
    """For any batches the card and the free texts are deleted. Amounts, codes and other customers stay."""
    found = texts_after_erasure(ledger, LIFE, cut)
    assert all(text in found for text in ("0815", "insufficient-points", "clerk", PSEUDONYMS.of("4711")))


@pytest.mark.parametrize("cut", range(5))
def test_an_erasure_keeps_codes(ledger: Ledger, cut: int) -> None:
    """The reasons of these kinds are never the words of a command."""
    codes = {Kind.RETURNED: "purchase-unknown", Kind.EARNED: "card-blocked", Kind.EXPIRES_SOON: "12.00"}
    coded = [("4711", entry(number, kind=kind, reason=codes[kind])) for number, kind in enumerate(codes, 1)]
    found = texts_after_erasure(ledger, [*coded, ("4711", erased(4))], cut)
    assert all(f"'{code}'" in found for code in codes.values())


def test_a_replay_after_an_erasure_restores_no_card(ledger: Ledger) -> None:
    """Old records that come again or late do not restore the card."""
    ledger.append(*LIFE[:2], *LIFE[4:])
    assert [(3, 4)] == ledger.gaps()
    assert Appended(entries=2, gaps=-1) == ledger.append(*LIFE)
    assert "4711" not in texts(ledger.engine)
    assert expected(LIFE) == stored(ledger.engine)


def test_other_accounts_do_not_name_an_erased_customer(ledger: Ledger) -> None:
    """Late transfers show the pseudonym. Transfers with the customer's next account show the card."""
    ledger.append(*LIFE)
    late = entry(2, kind=Kind.RECEIVED, reason=WORDS, counterparty="4711", time=OPENED_AGAIN - 1)
    ledger.append(("0815", late))
    assert "4711" not in texts(ledger.engine)
    ledger.append(("4711", entry(1, opened_time=OPENED_AGAIN)))
    older = entry(3, kind=Kind.RECEIVED, counterparty="4711", time=LIFE[-1][1].time)
    newer = entry(4, kind=Kind.SENT, counterparty="4711", time=OPENED_AGAIN + 1)
    ledger.append(("0815", older))
    assert 1 == texts(ledger.engine).count("'4711'")
    ledger.append(("0815", newer))
    assert 2 == texts(ledger.engine).count("'4711'")


OPENED_AGAIN = 50_000


@pytest.mark.parametrize("cut", range(5))
def test_an_erasure_deletes_a_card_that_a_database_cannot_store(ledger: Ledger, cut: int) -> None:
    """The ledger stores another character in place of a zero character, also in the entries of other customers."""
    odd = "a\0b"
    named = {"counterparty": odd, "actor": odd}
    entries = [
        (odd, entry(1)),
        ("0815", entry(1, kind=Kind.RECEIVED, **named)),
        (odd, erased(2)),
        ("0815", entry(2, kind=Kind.RECEIVED, **named)),
    ]
    for batch in filter(None, (entries[:cut], entries[cut:])):
        ledger.append(*batch)
    assert "\ufffd" not in texts(ledger.engine)


def test_a_customer_can_be_erased_twice(ledger: Ledger) -> None:
    """The second erasure deletes the card of the account that was opened after the first one."""
    ledger.append(*LIFE, ("4711", entry(1, opened_time=OPENED_AGAIN, time=OPENED_AGAIN)))
    assert [None, "0815", "4711"] == ledger.cards()
    end = entry(2, opened_time=OPENED_AGAIN, time=OPENED_AGAIN + 5, kind=Kind.ERASED, points=-100, total=0)
    assert 1 == ledger.append(("4711", end)).erased
    assert [None, "0815", None] == ledger.cards()
    assert "4711" not in texts(ledger.engine)


ACTED = [
    ("4711", entry(1)),
    ("0815", entry(1, kind=Kind.ADJUSTED, reason=WORDS, actor="4711")),
    ("0815", entry(2, kind=Kind.ADJUSTED, reason="goodwill", actor="clerk")),
    ("4711", erased(2)),
    ("0815", entry(3, kind=Kind.ADJUSTED, reason=WORDS, actor="4711", time=OPENED_AGAIN - 1)),
]


@pytest.mark.parametrize("cut", range(len(ACTED) + 1))
def test_other_accounts_do_not_name_an_erased_actor(ledger: Ledger, cut: int) -> None:
    """A customer who acted on another account has a pseudonym there after the erasure, and the words are gone."""
    found = texts_after_erasure(ledger, ACTED, cut)
    assert 2 == found.count(f"'', '{PSEUDONYMS.of('4711')}'")
    assert "'goodwill', 'clerk'" in found


@pytest.mark.parametrize("cut", range(8))
def test_an_erasure_deletes_the_subjects_of_tokens(ledger: Ledger, cut: int) -> None:
    """The subject can be the card, or another name of the customer. Entries of other customers keep their actors."""
    entries = [
        ("4711", entry(1)),
        ("4711", entry(2, kind=Kind.RESERVED, points=0, actor="token:Anna")),
        ("4711", entry(3, kind=Kind.SENT, points=-50, reason=WORDS, counterparty="0815", actor="token:Anna")),
        ("0815", entry(1, kind=Kind.RECEIVED, points=50, reason=WORDS, counterparty="4711", actor="token:Anna")),
        ("0815", entry(2, kind=Kind.ADJUSTED, reason=WORDS, actor="token:4711")),
        ("0815", entry(3, kind=Kind.ADJUSTED, reason="goodwill", actor="token:clerk")),
        ("4711", erased(4)),
    ]
    found = texts_after_erasure(ledger, entries, cut)
    assert 3 == found.count("'token:'")
    assert f"'', '{PSEUDONYMS.of('4711')}'" in found
    assert "'goodwill', 'token:clerk'" in found


@pytest.mark.parametrize("cut", range(5))
@pytest.mark.parametrize("caller", ["key:17", "token:clerk"])
def test_an_erasure_hides_no_caller_whose_name_is_not_the_card(ledger: Ledger, cut: int, caller: str) -> None:
    """A card can look like the name of a caller. The card of a token is only its subject."""
    entries = [
        (caller, entry(1)),
        ("0815", entry(1, kind=Kind.ADJUSTED, reason="goodwill", actor=caller)),
        (caller, erased(2)),
        ("0815", entry(2, kind=Kind.ADJUSTED, reason="goodwill", actor=caller)),
    ]
    for batch in filter(None, (entries[:cut], entries[cut:])):
        ledger.append(*batch)
    assert 2 == texts(ledger.engine).count(f"'goodwill', '{caller}'")


def test_an_actor_who_is_back_is_named_again(ledger: Ledger) -> None:
    """Only entries of the time before the erasure hide the actor."""
    ledger.append(*ACTED, ("4711", entry(1, opened_time=OPENED_AGAIN)))
    newer = entry(4, kind=Kind.ADJUSTED, reason="new words", actor="4711", time=OPENED_AGAIN + 1)
    ledger.append(("0815", newer))
    assert "'new words', '4711'" in texts(ledger.engine)


def test_an_erasure_finds_actors_by_an_index(tmp_path: Path) -> None:
    """Without an index each erasure would read all entries."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    plan: list[str] = []

    def explain(connection: Any, _: object, statement: str, parameters: Any, *__: object) -> None:
        if statement.startswith("UPDATE ledger_entry"):
            rows = connection.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plan.extend(row[-1] for row in rows)

    event.listen(ledger.engine, "before_cursor_execute", explain)
    ledger.append(*LIFE)
    ledger.close()
    assert any("ix_ledger_entry_actor" in step for step in plan)
    assert not [step for step in plan if step.startswith("SCAN")]


@pytest.mark.parametrize("cut", range(9))
def test_the_next_account_of_a_card_erases_the_older_one(ledger: Ledger, cut: int) -> None:
    """The ledger has missed the erasure, because Kafka deleted the entry before the ledger read it. Entries of others
    name the customer of the new account.
    """
    new = entry(1, opened_time=OPENED_AGAIN, time=OPENED_AGAIN)
    old = entry(2, kind=Kind.SENT, counterparty="4711", reason=WORDS, time=OPENED_AGAIN - 1)
    sent = entry(3, kind=Kind.SENT, counterparty="4711", time=OPENED_AGAIN)
    entries = [*LIFE[:5], ("0815", old), ("4711", new), ("0815", sent)]
    batches = [batch for batch in (entries[:cut], entries[cut:]) if batch]
    assert 1 == sum(ledger.append(*batch).erased for batch in batches)
    assert {None, "0815", "4711"} == {*ledger.cards()}
    found = texts(ledger.engine)
    assert "Anna" not in found
    assert 2 == found.count("'4711'")
    assert expected(entries) == stored(ledger.engine)


@pytest.mark.parametrize("is_erased", [True, False])
def test_an_older_account_that_arrives_late_is_erased(ledger: Ledger, is_erased: bool) -> None:  # noqa: FBT001
    """A ledger that started late can learn of an older account from a webhook's dead letter that is sent again. The
    newer account is erased, or belongs to the next customer of the card.
    """
    newer = {"opened_time": OPENED_AGAIN, "time": OPENED_AGAIN}
    second = {**newer, "kind": Kind.ERASED} if is_erased else newer
    known = [("4711", entry(1, **newer)), ("4711", entry(2, **second))]
    ledger.append(*known)
    late = [("4711", entry(3, kind=Kind.ADJUSTED, reason="for Anna, card 4711")), ("4711", entry(4))]

    assert [1, 0] == [ledger.append(each).erased for each in late]

    assert [None if is_erased else "4711", None] == ledger.cards()
    found = texts(ledger.engine)
    assert "Anna" not in found
    assert (0 if is_erased else 1) == found.count("'4711'")
    assert expected([*known, *late]) == stored(ledger.engine)


@pytest.mark.parametrize("later", [0, 1])
def test_the_account_of_a_living_customer_is_not_the_older_one(ledger: Ledger, later: int) -> None:
    """Release 0.1 could give the next customer of an erased card an earlier OpenedTime."""
    erased = [
        entry(1, opened_time=OPENED_AGAIN, time=OPENED_AGAIN),
        entry(2, opened_time=OPENED_AGAIN, time=OPENED_AGAIN),
    ]
    erased[1] = replace(erased[1], kind=Kind.ERASED)
    living = entry(1, time=OPENED_AGAIN + later, kind=Kind.ADJUSTED, reason="goodwill")

    assert [1, 0] == [ledger.append(*(("4711", each) for each in entries)).erased for entries in (erased, [living])]

    assert [None, "4711"] == ledger.cards()
    assert "goodwill" in texts(ledger.engine)


def test_each_older_account_is_erased_at_its_own_time(ledger: Ledger) -> None:
    """An entry that names the next customer of the card keeps its text."""
    times = [OPENED_AGAIN + n for n in (0, 100, 200)]
    assert 2 == ledger.append(*(("4711", entry(1, opened_time=time, time=time)) for time in times)).erased
    with ledger.engine.connect() as connection:
        found = connection.execute(select(ACCOUNT.c.erased_time).order_by(ACCOUNT.c.opened_time)).scalars().all()
    assert [times[1] - 1, times[2] - 1, None] == found


def test_an_erasure_that_was_missed_long_ago_hides_nothing_of_the_next_customer(ledger: Ledger) -> None:
    """A database of release 0.1 can have an older account that is not erased, and entries of the next one."""
    received = entry(1, opened_time=OPENED_AGAIN, time=OPENED_AGAIN, actor="4711")
    sent = entry(1, kind=Kind.SENT, counterparty="4711", reason="for my son", time=OPENED_AGAIN)
    ledger.append(("4711", entry(1)), ("4711", received), ("0815", sent))
    with ledger.engine.begin() as connection:
        missed = ACCOUNT.c.erased_time.is_not(None)
        connection.execute(update(ACCOUNT).where(missed).values(card="4711", erased_time=None))
    assert 1 == ledger.append(("4711", entry(2, opened_time=OPENED_AGAIN, time=OPENED_AGAIN + 1))).erased
    found = texts(ledger.engine)
    assert "for my son" in found
    assert 3 == found.count("'4711'")  # the account, the actor and the receiver
