"""The accounts of a batch, as the current transaction sees them, and the gaps in their sequence numbers."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import structlog
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from services.ledger.tables import ACCOUNT, GAP

log = structlog.get_logger(__name__)

# Below the number of parameters that SQLite and PostgreSQL allow in one statement.
_CHUNK = 10_000

_Item = TypeVar("_Item")


class Gap(NamedTuple):
    """A range of missing sequence numbers. Both ends are missing too."""

    first: int
    last: int


class AccountKey(NamedTuple):
    """Identifies an account before and after its erasure."""

    pseudonym: str
    opened_time: int


@dataclass(slots=True)
class Account:
    """An account. ``erased_time`` is None while it is open."""

    id: int
    last_sequence: int
    erased_time: int | None
    gaps: list[Gap] = field(default_factory=list)


class Accounts:
    """All accounts of the given pseudonyms, by key."""

    def __init__(self, connection: Connection, pseudonyms: Collection[str]) -> None:
        self._connection = connection
        self._by_key: dict[AccountKey, Account] = {}
        self._by_pseudonym: defaultdict[str, list[tuple[int, Account]]] = defaultdict(list)
        for chunk in _chunks(pseudonyms):
            rows = connection.execute(select(ACCOUNT).where(ACCOUNT.c.pseudonym.in_(chunk)))
            for row in rows:
                key = AccountKey(row.pseudonym, row.opened_time)
                self._add(key, Account(row.id, row.last_sequence, row.erased_time))
        by_id = {account.id: account for account in self._by_key.values()}
        for ids in _chunks(by_id):
            for row in connection.execute(select(GAP).where(GAP.c.account_id.in_(ids))):
                by_id[row.account_id].gaps.append(Gap(row.first_sequence, row.last_sequence))

    def _add(self, key: AccountKey, account: Account) -> None:
        self._by_key[key] = account
        self._by_pseudonym[key.pseudonym].append((key.opened_time, account))

    def __getitem__(self, key: AccountKey) -> Account:
        return self._by_key[key]

    def opened_times(self, pseudonym: str) -> list[int]:
        """The OpenedTimes of all accounts of a customer, in order."""
        return sorted(opened_time for opened_time, _ in self._by_pseudonym[pseudonym])

    def open(self, cards: Mapping[AccountKey, str | None]) -> None:
        """Insert the accounts that do not exist yet, with their cards."""
        new = {key: card for key, card in cards.items() if key not in self._by_key}
        if not new:
            return
        values = [{**key._asdict(), "card": card, "last_sequence": 0} for key, card in new.items()]
        columns = (ACCOUNT.c.id, ACCOUNT.c.pseudonym, ACCOUNT.c.opened_time)
        for row in self._connection.execute(insert(ACCOUNT).returning(*columns), values):
            self._add(AccountKey(row.pseudonym, row.opened_time), Account(row.id, 0, None))

    def erase(self, key: AccountKey, time: int) -> list[Account]:
        """Delete the card of this account and of older ones of the customer. Returns those that had a card."""
        erased = []
        for opened_time, account in self._by_pseudonym[key.pseudonym]:
            if opened_time <= key.opened_time and account.erased_time is None:
                account.erased_time = time
                statement = update(ACCOUNT).where(ACCOUNT.c.id == account.id)
                self._connection.execute(statement.values(card=None, erased_time=time))
                erased.append(account)
        return erased

    def is_erased(self, pseudonym: str, time: int) -> bool:
        """Whether an entry of this time must not name this customer.

        This is so if the customer was erased at this time or later, or if all accounts of the customer are erased.
        """
        states = [account.erased_time for _, account in self._by_pseudonym.get(pseudonym, ())]
        erased = [each for each in states if each is not None]
        return bool(erased) and (len(erased) == len(states) or time <= max(erased))

    def append(self, appended: Mapping[AccountKey, Iterable[int]]) -> tuple[int, int]:
        """Store the highest sequence number and the gaps of accounts after these sequence numbers were appended.

        Returns the change of the number of gaps, and the number of new gaps.
        """
        sequences, closed, opened = [], [], []
        before = after = new = 0
        for key, numbers in appended.items():
            account = self._by_key[key]
            last, gaps = find_gaps(account.last_sequence, account.gaps, numbers)
            before, after = before + len(account.gaps), after + len(gaps)
            new += sum(gap.first > account.last_sequence for gap in gaps)
            if last != account.last_sequence:
                sequences.append({"account": account.id, "sequence": last})
            if gaps != account.gaps:
                closed.append(account.id)
                opened += [{"account_id": account.id, "first_sequence": a, "last_sequence": b} for a, b in gaps]
            account.last_sequence, account.gaps = last, gaps
        if closed:
            change = {"accounts": len(closed), "before": before, "after": after}
            log.warning("the gaps changed; `loyalty ledger gaps` lists them", **change)
        if sequences:
            statement = update(ACCOUNT).where(ACCOUNT.c.id == bindparam("account"))
            self._connection.execute(statement.values(last_sequence=bindparam("sequence")), sequences)
        for chunk in _chunks(closed):
            self._connection.execute(delete(GAP).where(GAP.c.account_id.in_(chunk)))
        if opened:
            self._connection.execute(insert(GAP), opened)
        return after - before, new


def _chunks(items: Collection[_Item]) -> Iterator[list[_Item]]:
    ordered = list(items)
    return (ordered[start : start + _CHUNK] for start in range(0, len(ordered), _CHUNK))


def find_gaps(last: int, gaps: Sequence[Gap], appended: Iterable[int]) -> tuple[int, list[Gap]]:
    """The highest sequence number and the gaps after these numbers were appended, in any order, with duplicates."""
    missing = list(gaps)
    for sequence in sorted(set(appended)):
        if sequence > last:
            if sequence > last + 1:
                missing.append(Gap(last + 1, sequence - 1))
            last = sequence
        elif missing:
            missing = [rest for gap in missing for rest in _without(gap, sequence)]
    return last, missing


def _without(gap: Gap, sequence: int) -> Iterator[Gap]:
    if not gap.first <= sequence <= gap.last:
        yield gap
        return
    if gap.first < sequence:
        yield Gap(gap.first, sequence - 1)
    if sequence < gap.last:
        yield Gap(sequence + 1, gap.last)
