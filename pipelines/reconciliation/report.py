"""The report of the audit, for the terminal and for the topic audit-runs."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.table import Table

from services.audit.facts import COMPARED
from services.audit_trail import operator
from services.clock import now
from services.messaging.avro import Record

DIFFERENT, UNREADABLE = 1, 2
"""Exit statuses."""

_OUTCOMES = {0: "agrees", DIFFERENT: "differs", UNREADABLE: "incomplete"}
_MOST_FINDINGS = 1_000
"""The largest number of differences, and of customers that change too fast, in the record of a run."""


@dataclass(frozen=True, slots=True)
class CustomerDifference:
    """A difference of a customer. ``whose`` is the card, or the pseudonym if the card is no longer known."""

    whose: str
    where: str
    what: str


@dataclass(slots=True)
class Report:
    """The result of the audit.

    Attributes:
        compared: by source, the number of entries, balances or accounts.
        not_recomputed: accounts that lack events or entries. Only their sources were compared.
        unreadable: what could not be read, and why.
        changing: cards or pseudonyms of customers that change faster than the audit can compare them.
        notes: what retention has deleted, in words.
    """

    accounts: int = 0
    entries: int = 0
    not_recomputed: int = 0
    compared: dict[str, int] = field(default_factory=dict)
    differences: list[CustomerDifference] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    changing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The exit status of the process."""
        if self.differences:
            return DIFFERENT
        return UNREADABLE if self.unreadable or self.changing or self.not_recomputed else 0

    def run(self, started_time: int, pseudonym_of: Callable[[str], str]) -> Record:
        """The record AuditRun, which names customers by pseudonyms. ``started_time``: milliseconds since the epoch."""
        changing = [
            f"customer {pseudonym_of(each)} changes faster than it can be compared"
            for each in self.changing[:_MOST_FINDINGS]
        ]
        if more := len(self.changing) - len(changing):
            changing.append(f"{more:,} more customers change faster than they can be compared")
        findings = self.differences[:_MOST_FINDINGS]
        return {
            "RunID": str(uuid.uuid4()),
            "StartedTime": started_time,
            "EndedTime": now(),
            "Actor": operator(),
            "Outcome": _OUTCOMES[self.status],
            "Accounts": self.accounts,
            "Entries": self.entries,
            "NotRecomputed": self.not_recomputed,
            "Compared": [{"Place": place, "Number": number} for place, number in self.compared.items()],
            "Differences": len(self.differences),
            "Findings": [
                {"Customer": pseudonym_of(each.whose), "Place": each.where, "Difference": each.what}
                for each in findings
            ],
            "Unreadable": self.unreadable + changing,
            "Notes": self.notes,
        }


def texts_of(report: Report, limit: int) -> list[RenderableType]:
    """The report for a terminal, with at most ``limit`` differences."""
    table = Table("", "")
    table.columns[1].justify = "right"
    table.add_row("accounts", f"{report.accounts:,}")
    table.add_row("entries recomputed", f"{report.entries:,}")
    for source in COMPARED:
        number = report.compared.get(source)
        table.add_row(f"compared: {source}", "not compared" if number is None else f"{number:,}")
    table.add_row("accounts not recomputed", f"{report.not_recomputed:,}")
    table.add_row("differences", f"{len(report.differences):,}")
    differences = lines_of(report.differences, limit)
    changing = (f"{each} changes faster than it can be compared" for each in report.changing)
    unreadable = (f"not read: {line}" for line in (*report.unreadable, *changing))
    return [table, *differences, *unreadable, *(f"note: {line}" for line in report.notes)]


def lines_of(differences: list[CustomerDifference], limit: int) -> Iterator[str]:
    """A line for each of at most ``limit`` differences, and a line that names the option for more of them."""
    for found in differences[:limit]:
        yield f"{found.whose}: {found.where}: {found.what}"
    if len(differences) > limit:
        yield f"… and {len(differences) - limit:,} more differences (--show)"
