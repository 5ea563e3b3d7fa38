"""Finds the entries of an account that both the loyalty topic and the ledger lack.

Only the entries show in which order the account processed its events. So without all of them nobody can recompute the
account.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from services.audit.facts import Facts, Source
from services.domain.account.model import Outcome
from services.domain.entries import AccountVersion, Entry, Kind
from services.domain.recomputation import in_order


class Gap(NamedTuple):
    """Missing sequence numbers before an entry, from ``first`` to ``last``.

    Attributes:
        after: the topic got the missing entries at this time or later. Milliseconds since the epoch.
    """

    first: int
    last: int
    after: int

    def __str__(self) -> str:
        if self.first == self.last:
            return f"entry {self.first} is missing"
        return f"entries {self.first} to {self.last} are missing"


@dataclass(frozen=True, slots=True)
class MissingEntries:
    """The entries that the record lacks. The record has all entries of the topic and of the ledger.

    Attributes:
        gaps: between the entries of the record, and before the first entry of an account.
        at_end: whether the topic has lost entries after the last one of the record.
        of_erased: whether the topic has lost the erasure of an earlier account of the card.
    """

    gaps: Sequence[Gap] = ()
    at_end: bool = False
    of_erased: bool = False

    def __bool__(self) -> bool:
        return bool(self.gaps) or self.at_end or self.of_erased


def find_missing(facts: Facts, record: Sequence[Entry], late: Outcome, topic_from: int, first: int) -> MissingEntries:
    """Find the missing entries of a customer.

    Args:
        record: in the order of the versions.
        late: the result of the events that have no entry in the record.
        topic_from: retention has deleted older entries from the topic. The time of an entry is never later than the
            time at which the topic got it. So a later entry that the topic lacks is not lost. The pipeline has not
            written it yet, or it was interrupted.
        first: the time of the first entry of the topic. Older entries can be lost, because the topic was created again.
    """
    entries_from = max(topic_from, first)
    last = record[-1].version if record else AccountVersion(0, 0)
    # If a served version is not newer than the record, another newer one is wrong, and no entry is missing.
    served = facts.served_versions
    at_end = bool(served) and all(version > last and time < entries_from for version, time in served)
    # The account of the record is open, so it is younger than this erasure, and the erasure had an entry.
    # Without a record, the erasure can also wait. If the account sent nothing, its order does not matter.
    before = min(entries_from, record[-1].opened_time) if record else entries_from if late.sent else topic_from
    of_erased = any(entry.kind is Kind.ERASED and entry.time < before for entry in late.entries)
    return MissingEntries([*_gaps(record)], at_end, of_erased)


def without_repeated(facts: Facts, topic_from: int) -> Facts:
    """Leave out the entries that are in the topic again, because a dead letter of a webhook was replayed.

    Kafka has deleted the entries after them. So without a ledger nobody knows which events came after them.

    Args:
        topic_from: as for ``find_missing``.
    """
    kept: list[Entry] = []
    for entry in in_order(facts.record):
        if kept and kept[-1].time < topic_from and not _can_follow(entry, kept[-1]):
            kept.clear()
        kept.append(entry)
    # No served version means that the topic has deleted the erasure, if its entry is not here.
    if kept and kept[-1].time < topic_from and all(version > kept[-1].version for version, _ in facts.served_versions):
        kept.clear()
    return replace(facts, recorded={Source.LOYALTY: kept})


def _can_follow(entry: Entry, before: Entry) -> bool:
    """Whether no entry is missing between these two. Both can have the same version."""
    if entry.opened_time == before.opened_time:
        return entry.sequence <= before.sequence + 1
    return entry.sequence == 1 and before.kind is Kind.ERASED


def _gaps(record: Iterable[Entry]) -> Iterator[Gap]:
    last, time = AccountVersion(0, 0), 0
    for entry in record:
        if entry.opened_time != last.opened_time:
            last, time = AccountVersion(entry.opened_time, 0), entry.opened_time
        if entry.sequence > last.sequence + 1:
            yield Gap(last.sequence + 1, entry.sequence - 1, time)
        last, time = entry.version, entry.time
