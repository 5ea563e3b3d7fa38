"""What an erasure deletes and keeps in both databases: services.ledger.appender."""

from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest
from sqlalchemy import event, select, update

import services.ledger.appender
from services.domain.entries import Kind
from services.ledger.appender import Appended, Batch
from services.ledger.positions import Span
from services.ledger.records import CardEntry
from services.ledger.tables import ACCOUNT
from tests.support.builders import entry
from tests.support.ledger import EVERYTHING, PSEUDONYMS, TOPIC_ID, Ledger, expected, stored, texts
from tests.unit.services.ledger.erased_accounts import LIFE, WORDS, erased

OPENED_AGAIN = 50_000


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
