"""What a rebuild writes: balances, what the state stores make of them, the returns it sends, and its first batches."""

from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import orjson
import pytest
from pyspark.errors import StreamingQueryException

from pipelines.accounts.records import writer_ids
from pipelines.queries.loyalty import Seed
from pipelines.reconciliation import rebuild
from pipelines.reconciliation.customers import Customer
from pipelines.reconciliation.facts import pseudonymize
from pipelines.reconciliation.forwarding import Returnable
from pipelines.reconciliation.reconstruction import (
    ENTRIES_MISSING,
    EVENTS_LOST,
    REBUILT,
    VERSIONS_MISSING,
    is_replaced,
    reconstruction,
    records_of,
    with_tombstone,
)
from pipelines.reconciliation.refusals import check_ledger
from pipelines.runtime.query import Query
from schemas.topics import LOYALTY, LOYALTY_BALANCES, LOYALTY_DECISIONS
from services.audit.comparison import Coverage, compare
from services.audit.facts import Facts, Source
from services.codecs.records import balance_record
from services.codecs.state import decode_account
from services.domain.account.model import Account, Outcome
from services.domain.account.processor import process
from services.domain.entries import AccountVersion, Entry
from services.domain.events import Adjust, Erase, Event, Import, Purchase, Replace, Reserve, SentLot, Transfer
from services.domain.programme import DAY, Programme, Programmes
from services.errors import UserError
from services.messaging.avro import record_encoder
from services.pseudonyms import KEY_BYTES, Pseudonyms
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.catalogue import balance_body
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.task import ChangelogRecord, StoreTask, TaskProgress
from tests.support.account_histories import CARD, START, processed
from tests.support.builders import IDS

NOW = START + 200 * DAY
HISTORY = processed([[Purchase(START + n, f"I{n}", Decimal(100))] for n in (1, 2, 3)], Programmes())
LAST = HISTORY.entries[-1]


def changelog_value(entry: Entry) -> bytes:
    encode = record_encoder(LOYALTY_BALANCES.value, writer_ids(IDS)[LOYALTY_BALANCES])
    return encode(balance_record(CARD, entry))


def compared(
    facts: Facts, *sources: Source, programmes: Programmes | None = None, record_from: int = 0, topic_from: int = 0
) -> Customer:
    """The customer with these facts, after a comparison of these sources."""
    coverage = Coverage(frozenset(sources), 0, record_from, topic_from, NOW)
    result = compare(CARD, facts, programmes or Programmes(), coverage, lambda card: f"p-{card}")
    return Customer(f"p-{CARD}", CARD, facts, *result)


def rebuilt_balances(served: Entry) -> list[bytes | None]:
    """The values of the balance records that a rebuild writes when this balance is served."""
    facts = Facts(
        events=list(HISTORY.events),
        recorded={Source.LOYALTY: HISTORY.entries, Source.LEDGER: HISTORY.entries},
        balance=orjson.loads(balance_body(balance_record(CARD, served))),
    )
    customer = compared(facts, Source.EVENT, Source.LOYALTY, Source.LEDGER, Source.BALANCE)
    records = records_of(CARD, customer.recomputed, NOW, writer_ids(IDS))
    if is_replaced(facts, customer.result, customer.recomputed):
        records = with_tombstone(records)
    return [record["value"] for record in records if record["topic"] == LOYALTY_BALANCES.name]  # type: ignore[misc]


@pytest.mark.parametrize(
    "served",
    [
        LAST,
        HISTORY.entries[0],  # the last micro-batch has not written its balance
        replace(LAST, total=LAST.total + 100),  # a wrong balance with the same sequence number
        replace(LAST, sequence=9, total=LAST.total + 100),  # a wrong balance with a higher sequence number
    ],
    ids=["right", "older", "same version", "higher version"],
)
def test_a_running_store_takes_the_rebuilt_balance(served: Entry) -> None:
    """A store ignores a value that is not newer. So a rebuild deletes a wrong balance before it writes the new one."""
    task = StoreTask(catalogue.stores(IDS)[0], 0, MemoryStorePartition(), "test", TaskProgress(None, 0, 0, 0, 0))
    task.apply([ChangelogRecord(0, START, CARD.encode(), changelog_value(served))])

    values = rebuilt_balances(served)
    for offset, value in enumerate(values, start=1):
        task.apply([ChangelogRecord(offset, START, CARD.encode(), value)])

    stored = task.get(CARD.encode())
    assert stored is not None
    assert stored.body == balance_body(balance_record(CARD, LAST))
    assert (None in values) == (served.total != LAST.total and served.version >= LAST.version)


RULES = Programmes.of([Programme(), Programme(version=1, effective_time=START + 5 * DAY, return_window=14 * DAY)])
"""The second version has a shorter return window."""
BOUGHT = Purchase(START + DAY, "P", Decimal(1000))


def rebuilt_customer(events: list[Event], history: Outcome) -> tuple[dict[str, Returnable], set[str]]:
    """The purchases of a rebuilt account, and the returns that it must not get again.

    Args:
        history: the entries that the loyalty query has recorded.
    """
    facts = Facts(events=events, recorded={Source.LOYALTY: history.entries})
    rebuilt = reconstruction(IDS, RULES, NOW)(compared(facts, Source.LOYALTY, programmes=RULES))
    return {each.original: each for each in rebuilt["purchases"]}, set(rebuilt["returns"])


def returned(number: str, days: int) -> Purchase:
    return Purchase(START + days * DAY, number, Decimal(-500), original_invoice_number="P")


def test_a_rebuild_does_not_send_a_return_that_a_former_card_has_settled() -> None:
    """The new card has the purchase. It has forgotten the return, because a later version has a shorter window."""
    former = process(None, [BOUGHT, returned("R", 6)], RULES, "former")
    move = Replace(append_time=START + 7 * DAY, command_id="replace", counterparty=CARD)
    ((_, absorb),) = process(former.state, [move], RULES, "former").commands
    events: list[Event] = [
        replace(absorb, append_time=START + 7 * DAY + 1),
        Purchase(START + 40 * DAY, "Q", Decimal(100)),
    ]

    bought, known = rebuilt_customer(events, process(None, events, RULES, CARD))

    assert "R" not in known
    assert START + 6 * DAY < START + 26 * DAY == bought["P"].since


def test_events_that_a_rebuild_processes_do_not_hide_a_lost_return() -> None:
    """The query stood still for 48 days. The new events make the account forget returns of these days.

    A return of another card in these days was never sent. A return of its own card is among the new events.
    """
    recorded = process(None, [BOUGHT], RULES, CARD)
    new: list[Event] = [returned("R", 20), Purchase(START + 50 * DAY, "Q", Decimal(100))]
    assert "R" not in (process(recorded.state, new, RULES, CARD).account or Account(0)).returns

    bought, known = rebuilt_customer([BOUGHT, *new], recorded)

    assert "R" in known
    assert START + DAY - 14 * DAY == bought["P"].since


def test_a_rebuild_sends_no_return_from_long_before_the_account() -> None:
    """Another customer bought with this number a year ago, and returned the purchase."""
    bought, _ = rebuilt_customer([BOUGHT], Outcome(None))

    assert START + DAY - 14 * DAY == bought["P"].since


MOVE = Replace(append_time=START + 7 * DAY, command_id="replace", counterparty="other")


@pytest.mark.parametrize(
    ("recorded", "new", "last_return"),
    [
        ([BOUGHT], [MOVE], START + 91 * DAY),
        ([MOVE], [replace(BOUGHT, append_time=START + 8 * DAY)], NOW + 14 * DAY),
    ],
    ids=["moves", "is sold with a replaced card"],
)
def test_a_rebuild_knows_a_purchase_on_its_way_to_another_card(
    recorded: list[Event], new: list[Event], last_return: int
) -> None:
    """The other account does not have it yet. The account of the replaced card forwards a return that arrives there."""
    bought, _ = rebuilt_customer([*recorded, *new], process(None, recorded, RULES, CARD))

    assert {"P": last_return} == {number: each.until for number, each in bought.items()}


@pytest.mark.parametrize(
    ("compared", "refusal"),
    [
        ({Source.LOYALTY, Source.LEDGER}, None),
        ({Source.LOYALTY}, "^ledger: no such file. Only the ledger has .* --without-ledger$"),
    ],
)
def test_the_ledger_must_be_readable(compared: set[Source], refusal: str | None) -> None:
    """The loyalty topic can look complete although it was created again. The refusal says what to do."""
    coverage = Coverage(frozenset(compared), 0, 0, 0, NOW)
    snapshot: Any = SimpleNamespace(coverage=coverage, unreadable=["ledger: no such file"])

    with pytest.raises(UserError, match=refusal) if refusal else nullcontext():
        check_ledger(snapshot)


def test_a_rebuild_does_not_change_the_order_of_events_whose_entries_are_lost() -> None:
    """The ledger began again after its loss. Without the refusal, a reserve would come before its purchase."""
    reserve = Reserve(append_time=START + 30 * DAY, command_id="reserve", points=500)
    history = processed([[BOUGHT], [reserve]], Programmes())
    entries = history.entries[1:]
    facts = Facts(events=history.events, recorded={Source.LOYALTY: entries, Source.LEDGER: entries})
    topic_from = START + 25 * DAY

    def problem(*sources: Source, record_from: int) -> object:
        customer = compared(facts, *sources, record_from=record_from, topic_from=topic_from)
        return reconstruction(IDS, Programmes(), NOW)(customer)["problem"]

    assert ENTRIES_MISSING == problem(Source.LOYALTY, Source.LEDGER, record_from=0)
    assert problem(Source.LOYALTY, record_from=topic_from) is None, (
        "--without-ledger accepts the order of the append times"
    )


def test_a_rebuild_needs_every_version_that_an_entry_names() -> None:
    """The topic of the programme is lost. The rebuild would compute the points by version 0."""
    later = replace(BOUGHT, append_time=START + 6 * DAY)
    entries = process(None, [later], RULES, CARD).entries
    facts = Facts(events=[later], recorded={Source.LOYALTY: entries})

    def problem(programmes: Programmes) -> object:
        customer = compared(facts, Source.LOYALTY, programmes=programmes)
        return reconstruction(IDS, programmes, NOW)(customer)["problem"]

    assert problem(RULES) is None
    assert VERSIONS_MISSING == problem(Programmes())


LOST = Import(append_time=START + 2 * DAY, command_id="lost", lots=(SentLot(500, 0), SentLot(500, NOW + DAY)))
"""An import with two lots has two entries."""
LATE = Purchase(START + 9 * DAY, "late", Decimal(100))


@pytest.mark.parametrize(
    ("recorded", "points"),
    [
        ([BOUGHT, LOST], 2_000),
        ([LOST], 0),
        ([LOST, replace(BOUGHT, append_time=START + 3 * DAY)], 2_000),
        ([BOUGHT, LOST, replace(BOUGHT, append_time=START + 3 * DAY, invoice_number="Q")], 4_000),
    ],
    ids=["last", "only", "first", "in between"],
)
@pytest.mark.parametrize("late", [[], [LATE]], ids=["no new event", "a new event"])
def test_a_rebuild_without_a_lost_event_must_be_accepted(recorded: list[Event], points: int, late: list[Event]) -> None:
    """The account then loses only its points. It keeps its OpenedTime, so the ledger does not treat it as erased. New
    entries continue after the recorded ones.
    """
    entries = Outcome(None)
    for event in recorded:
        outcome = process(entries.account, [event], Programmes(), CARD)
        entries = replace(outcome, entries=entries.entries + outcome.entries)
    last = entries.entries[-1]
    events = [event for event in recorded if event.event_id != "lost"] + late
    facts = Facts(events=events, recorded={Source.LOYALTY: entries.entries, Source.LEDGER: entries.entries})
    customer = compared(facts, Source.LOYALTY, Source.LEDGER)

    def rebuilt(**options: bool) -> dict[str, Any]:
        return reconstruction(IDS, Programmes(), NOW, **options)(customer)

    refused, accepted = rebuilt(), rebuilt(accept_lost_events=True)

    assert (EVENTS_LOST, []) == (refused["problem"], refused["records"])
    assert accepted["problem"] is None
    account = decode_account(accepted["account"])
    assert isinstance(account, Account)
    assert (last.opened_time, last.sequence + len(late)) == (account.opened_time, account.sequence)
    assert points + 200 * len(late) == account.total
    assert [last.version] * len(late) == [
        (each.opened_time, each.sequence - 1) for each in customer.recomputed.late.entries
    ]
    # A store ignores a later balance of this account if this one has a later version.
    for balance in (each for each in accepted["records"] if each["value"] and each["topic"] == LOYALTY_BALANCES.name):
        opened_time, sequence = map(int, balance["id"].partition("@")[2].split("."))
        assert (last.opened_time, account.sequence) >= (opened_time, sequence)


def test_a_rebuild_does_not_open_an_account_again_whose_erasure_is_lost() -> None:
    recorded: list[Event] = [BOUGHT, Erase(append_time=START + 2 * DAY, command_id="lost")]
    entries = process(None, recorded, Programmes(), CARD).entries
    facts = Facts(events=[BOUGHT], recorded={Source.LOYALTY: entries, Source.LEDGER: entries})

    recomputed = compared(facts, Source.LOYALTY, Source.LEDGER).recomputed

    assert ["lost"] == [each.event_id for each in recomputed.without_event]
    assert recomputed.late.account is None


def test_a_credit_to_a_pseudonym_must_have_been_sent() -> None:
    """A purchase followed a refused transfer. Without the entries their order is lost, and the transfer succeeds.

    The archive has only the pseudonym of the receiver. With the ledger the rebuild sends nothing.
    """
    names = Pseudonyms(bytes(KEY_BYTES))
    receiver = names.of("receiver")
    transfer = Transfer(append_time=START + 2, command_id="gift", points=500, counterparty=receiver)
    refused = process(None, [transfer], Programmes(), CARD)
    history = refused.entries + process(refused.state, [BOUGHT], Programmes(), CARD).entries
    facts = Facts(events=[replace(BOUGHT, append_time=START + 1), transfer])

    def nameless(facts: Facts, record_from: int) -> object:
        coverage = Coverage(frozenset({Source.LOYALTY}), 0, record_from, record_from, NOW)
        result = compare(CARD, facts, Programmes(), coverage, pseudonymize(names))
        return reconstruction(IDS, Programmes(), NOW)(Customer(names.of(CARD), CARD, facts, *result))["nameless"]

    assert ["gift/in"] == nameless(facts, NOW)
    assert [] == nameless(replace(facts, recorded={Source.LEDGER: history}), 0)


class Checkpoint:
    """Stands for the reader of a new checkpoint."""

    def __init__(self) -> None:
        self.planned: list[int] = []
        self.discarded = 0

    def batches(self, log: str) -> list[int]:
        assert "offsets" == log
        return self.planned

    def discard(self) -> None:
        self.discarded += 1


def test_a_query_that_fails_replays_the_batch_that_it_has_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other batches would give customers other entries with versions that readers already have.

    The first attempt fails before the first micro-batch, and leaves nothing. The second one fails during it.
    """
    checkpoint, are_new = Checkpoint(), []

    def start(query: Query, spark: Any, ids: Any, settings: Settings, **__: bool) -> Any:
        attempt = len(are_new)
        are_new.append(attempt == checkpoint.discarded)
        query.check(spark, ids, "checkpoint", settings, are_new[-1])
        checkpoint.planned = [0] if attempt else []
        error = StreamingQueryException("Python worker failed to connect back") if attempt < 2 else None
        return MagicMock(awaitTermination=MagicMock(side_effect=error))

    monkeypatch.setattr(Query, "start", start)

    rebuild._start(MagicMock(), checkpoint, Seed(MagicMock(), MagicMock(), {}, MagicMock()))  # type: ignore[arg-type]

    assert [True, True, False] == are_new
    assert 1 == checkpoint.discarded


def test_a_rebuild_gives_up_after_some_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint()
    monkeypatch.setattr(Query, "start", MagicMock(side_effect=StreamingQueryException("no worker")))

    with pytest.raises(UserError, match="does not start: no worker"):
        rebuild._start(MagicMock(), checkpoint, Seed(MagicMock(), MagicMock(), {}, MagicMock()))  # type: ignore[arg-type]

    assert rebuild._ATTEMPTS == checkpoint.discarded


def customer_of(events: list[Event], recorded: int, card: str | None = CARD) -> Customer:
    """A customer whose first events have entries."""
    facts = Facts(
        events=events, recorded={Source.LOYALTY: process(None, events[:recorded], Programmes(), CARD).entries}
    )
    coverage = Coverage(frozenset({Source.LOYALTY}), 0, 0, 0, NOW)
    result = compare(card or f"p-{CARD}", facts, Programmes(), coverage, lambda name: f"p-{name.removeprefix('p-')}")
    return Customer(f"p-{CARD}", card, facts, *result)


@pytest.mark.parametrize(("recorded", "topics"), [(2, []), (1, [LOYALTY.name])])
def test_a_rebuild_sends_only_new_entries_and_one_balance(recorded: int, topics: list[str]) -> None:
    customer = customer_of([BOUGHT, LATE], recorded)

    sent = [each["topic"] for each in records_of(CARD, customer.recomputed, NOW, writer_ids(IDS))]

    assert [*topics, LOYALTY_BALANCES.name] == sent


def test_only_a_balance_gets_a_tombstone() -> None:
    """A decision and an entry stay, and a balance that is deleted anyway is deleted once."""
    entry, balance, erased = (
        {"topic": topic, "value": value}
        for topic, value in ((LOYALTY.name, b"1"), (LOYALTY_BALANCES.name, b"2"), (LOYALTY_BALANCES.name, None))
    )

    assert [entry, balance | {"value": None}, balance, erased] == [*with_tombstone([entry, balance, erased])]


@pytest.mark.parametrize("is_erased", [True, False])
def test_an_account_needs_its_card_unless_it_is_erased(*, is_erased: bool) -> None:
    """After an erasure an archive has only the pseudonym of the card. This does not stop a rebuild."""
    events: list[Event] = [BOUGHT, *([Erase(append_time=START + 2 * DAY, command_id="erase")] if is_erased else [])]
    customer = customer_of(events, len(events), card=None)

    rebuilt = reconstruction(IDS, Programmes(), NOW)(customer)

    assert REBUILT.names == [*rebuilt]
    assert is_erased == (rebuilt["problem"] is None)
    assert (None, None, []) == (rebuilt["CustomerCardNo"], rebuilt["account"], rebuilt["purchases"])


def test_a_rebuild_writes_the_decisions_of_the_last_days_except_those_of_an_erased_customer() -> None:
    adjust = Adjust(append_time=START + DAY, command_id="adjust", points=100, request_hash="hash")
    erase = Erase(append_time=START + 2 * DAY, command_id="erase")

    def written(events: list[Event], now: int) -> list[object]:
        customer = customer_of(events, len(events))
        records = records_of(CARD, customer.recomputed, now, writer_ids(IDS))
        return [each["id"] for each in records if each["topic"] == LOYALTY_DECISIONS.name]

    assert ["adjust"] == written([adjust], START + 11 * DAY - 1)
    assert [] == written([adjust], START + 11 * DAY)
    assert ["erase", "adjust"] == written([adjust, erase], START + 3 * DAY)


def rebuilt_version(events: list[Event], entries: list[Entry], served: Entry) -> AccountVersion:
    facts = Facts(
        events=events,
        recorded={Source.LOYALTY: entries},
        balance=orjson.loads(balance_body(balance_record(CARD, served))),
    )
    rebuilt = reconstruction(IDS, Programmes(), NOW)(compared(facts, Source.LOYALTY, Source.BALANCE))
    account = decode_account(rebuilt["account"])
    assert isinstance(account, Account)
    return AccountVersion(account.opened_time, account.sequence)


def test_a_rebuilt_account_continues_after_its_last_entry() -> None:
    """A wrong balance had a higher sequence number. If the account had it too, entries would be missing for ever."""
    entries = process(None, [BOUGHT, LATE], Programmes(), CARD).entries

    assert entries[-1].version == rebuilt_version([BOUGHT, LATE], entries, replace(entries[-1], sequence=9))


def test_a_rebuilt_account_does_not_open_before_its_entries() -> None:
    """Two runs of a micro-batch have opened it twice. The ledger ignores entries of an earlier account."""
    (late,) = process(None, [LATE], Programmes(), CARD).entries
    entries = [late, *process(None, [BOUGHT, LATE], Programmes(), CARD).entries]

    assert late.version == rebuilt_version([BOUGHT, LATE], entries, late)
