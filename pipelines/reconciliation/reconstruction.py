"""Rebuilds one customer: the account that the events give, and the records that the output topics may lack."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import types as T

from pipelines.accounts.records import RECORD_TYPE, rows_of, writer_ids
from pipelines.columns.types import struct
from pipelines.reconciliation.customers import Customer
from pipelines.reconciliation.forwarding import RETURNABLE, Returnable, returnables
from schemas import topics
from schemas.topics import Topic
from services.audit.comparison import CustomerResult
from services.audit.facts import Facts, Source
from services.codecs.state import encode_account
from services.domain.account.model import EVENT_MEMORY, Account, AccountState
from services.domain.account.processor import process
from services.domain.events import Absorb, Purchase
from services.domain.programme import Programmes
from services.domain.recomputation import Recomputed, is_from_timer
from services.domain.validation import is_pseudonym
from services.messaging.schema_ids import SchemaIds

_DIFFERENCE = struct(where="string", what="string")
REBUILT = struct(
    pseudonym="string",
    whose="string",
    CustomerCardNo="string",
    account="binary",
    late="long",
    problem="string",
    differences=T.ArrayType(_DIFFERENCE),
    records=T.ArrayType(RECORD_TYPE),
    purchases=T.ArrayType(RETURNABLE),
    returns=T.ArrayType(T.StringType()),
    nameless=T.ArrayType(T.StringType()),
)
"""One customer: the account (null if there is none), the number of newly processed events, and a problem or null.

``purchases`` are those that the index of invoices must know with this card. ``returns`` are the numbers of returns that
the account must not get again. ``nameless`` are the ids of commands to cards of which only the pseudonyms are known.
These commands must have been sent before.
"""

EVENTS_MISSING = "events are missing"
"""The problem of an account that depends on deleted events."""

EVENTS_LOST = "recorded entries have no event, so the accounts would lose the points of these entries"
"""The problem of an account that lacks events, although retention has not deleted them. Kafka has lost them, this
release cannot read them, or the archive has another copy of a repeated invoice.
"""

ENTRIES_MISSING = "entries are missing in the topic loyalty and in the ledger"
"""The problem of an account whose events have no known order."""

VERSIONS_MISSING = "loyalty-programmes lacks versions that entries name: restore its records from a backup"
"""The problem of an account whose points follow from an unknown version of the programme."""

CARD_UNKNOWN = (
    "the card of a pseudonym is not known: neither the topics nor the ledger has it. Publish again the invoices that "
    "the loyalty query has never read, and let callers repeat such commands with the same keys: then the topics have it"
)
"""The problem of an account whose only events are in the archive, which has no cards."""


def reconstruction(
    schema_ids: SchemaIds, programmes: Programmes, now: int, *, accept_lost_events: bool = False
) -> Callable[[Customer], dict[str, Any]]:
    """Returns a function for ``by_customer`` that gives a row of REBUILT. ``now``: milliseconds since the epoch."""
    ids = writer_ids(schema_ids)
    versions = {each.version for each in programmes.versions}

    def row_of(customer: Customer) -> dict[str, Any]:
        pseudonym, card, facts, result, recomputed = customer
        state = _with_newest_version(recomputed.late.state, facts)
        is_known = all(entry.programme_version in versions for entry in facts.record)
        problem = _problem(card, recomputed, result) if is_known else VERSIONS_MISSING
        if problem is None and recomputed.without_event and not accept_lost_events:
            problem = EVENTS_LOST
        records = [] if problem or not card else [*records_of(card, recomputed, now, ids)]
        if is_replaced(facts, result, recomputed):
            records = [*with_tombstone(records)]
        return {
            "pseudonym": pseudonym,
            "whose": card or pseudonym,
            "CustomerCardNo": card,
            "account": encode_account(state) if state and card else None,
            "late": len({entry.event_id for entry in recomputed.late.entries if not is_from_timer(entry)}),
            "problem": problem,
            "differences": [{"where": str(each.where), "what": each.what} for each in result.differences],
            "records": records,
            "purchases": [*_returnables(recomputed, programmes, now)] if card else [],
            "returns": [*_known_returns(recomputed)],
            "nameless": [*_nameless(records)],
        }

    return row_of


def _returnables(recomputed: Recomputed, programmes: Programmes, now: int) -> Iterator[Returnable]:
    """The purchases of the new account, and those that the new events send from a replaced card to another card.

    The other account does not have these purchases yet. The account of the replaced card forwards their returns too.

    The new events can make the account forget returns that ``_known_returns`` still has. So ``since`` follows from the
    account before the new events.
    """
    before, account = recomputed.settled.account, recomputed.late.account
    if account:
        moving = (each for _, each in recomputed.late.commands if isinstance(each, Absorb | Purchase))
        sent = process(None, (replace(each, append_time=now) for each in moving), programmes, account.moved_to).account
        for each in filter(None, (account, sent)):
            yield from returnables(each, programmes, before.updated_time if before else account.opened_time)


def _known_returns(recomputed: Recomputed) -> set[str]:
    """The returns that the account knew before the new events, or knows after them, and those among these events."""
    accounts = filter(None, (recomputed.settled.account, recomputed.late.account))
    known = {number for account in accounts for number in account.returns}
    return known.union(*((entry.event_id, entry.invoice_number) for entry in recomputed.late.entries))


def _problem(card: str | None, recomputed: Recomputed, result: CustomerResult) -> str | None:
    if not result.recomputed:
        return ENTRIES_MISSING if result.lacks_entries else EVENTS_MISSING
    if card is None and recomputed.late.account is not None:
        return CARD_UNKNOWN
    late = recomputed.late
    receivers = [credit.to_card for credit in late.credits] + [to_card for to_card, _ in late.commands]
    if any(map(is_pseudonym, receivers)):
        return "points were transferred to a card, and only its pseudonym in the archive is left"
    return None


def _nameless(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The ids of the commands to a card of which only the pseudonym is known."""
    for record in records:
        if record["topic"] == topics.LOYALTY_COMMANDS.name and is_pseudonym(record["key"].decode()):
            yield record["id"]


def _with_newest_version(state: AccountState | None, of_customer: Facts) -> AccountState | None:
    """Make the version at least as high as that of each recorded entry. Otherwise the ledger would ignore new entries.

    Two runs of one micro-batch with different records can have opened an account at two times.
    """
    last = max((entry.version for entry in of_customer.record), default=None)
    if not isinstance(state, Account) or last is None or last <= (state.opened_time, state.sequence):
        return state
    return replace(state, opened_time=last.opened_time, sequence=last.sequence)


def records_of(card: str, recomputed: Recomputed, now: int, ids: Mapping[Topic, int]) -> Iterator[dict[str, object]]:
    """The records of newly processed events, and decisions, credits and balances that may not be written yet."""
    settled, late = recomputed.settled, recomputed.late
    forgotten = {each.command_id for each in (*settled.forgotten, *late.forgotten)}
    decisions = [
        each for each in settled.decisions if each.command_id not in forgotten and each.time + EVENT_MEMORY > now
    ]
    earlier = replace(settled, entries=settled.entries[-1:], decisions=decisions)
    left_out = {topics.LOYALTY.name} | ({topics.LOYALTY_BALANCES.name} if late.entries else set())
    for row in rows_of(card, earlier, ids):
        if row.topic not in left_out:
            yield row.asDict()
    for row in rows_of(card, late, ids):
        yield row.asDict()


def is_replaced(of_customer: Facts, result: CustomerResult, recomputed: Recomputed) -> bool:
    """Whether the served balance is wrong, and its version is at least as high as that of the recomputed balance."""
    entries = recomputed.late.entries or recomputed.settled.entries
    served = max((version for version, _ in of_customer.served_versions), default=None)
    is_wrong = any(each.where is Source.BALANCE for each in result.differences)
    return is_wrong and served is not None and bool(entries) and served >= entries[-1].version


def with_tombstone(records: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Delete the served balance before the new one is written. Stores ignore a balance that is not newer."""
    for record in records:
        if record["topic"] == topics.LOYALTY_BALANCES.name and record["value"] is not None:
            yield {**record, "value": None}
        yield record
