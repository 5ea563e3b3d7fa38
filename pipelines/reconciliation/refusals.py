"""The checks of a rebuild before it writes anything."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.deduplication.stream import event_id
from pipelines.reconciliation.reconstruction import ENTRIES_MISSING, EVENTS_LOST, EVENTS_MISSING
from pipelines.reconciliation.snapshot import CREATED_AGAIN, Snapshot
from services.audit.facts import Source
from services.errors import UserError
from services.settings import Settings


def check_archive(snapshot: Snapshot, settings: Settings) -> None:
    """Refuse an archive that lacks events."""
    if lost := snapshot.events.lost_records:
        raise UserError(
            f"the archive {settings.archive_dir} can lack {'; '.join(map(str, lost))}, which its query was allowed to "
            "skip: accounts would miss these events. Restore an archive without the gap from a backup"
        )


def check_ledger(snapshot: Snapshot) -> None:
    """Refuse if the ledger could not be read.

    Entries show in which order an account processed its events. In another order it can have other points. A loyalty
    topic that lacks entries can look complete, because it was created again.
    """
    if Source.LEDGER not in snapshot.coverage.compared:
        raise UserError(
            f"{'; '.join(snapshot.unreadable)}. Only the ledger has the entries that the topic loyalty has lost. "
            "Without them the order of the events is not known, and accounts could get wrong points. Make the ledger "
            "readable or restore it from a backup. If this installation has no ledger, use --without-ledger"
        )


def check_complete(accounts: DataFrame, snapshot: Snapshot) -> None:
    """Refuse if accounts cannot be recomputed."""
    problems = accounts.where(F.col("problem").isNotNull())
    if number := problems.count():
        reasons = "; ".join(sorted({row.problem for row in problems.select("problem").distinct().collect()}))
        notes = "".join(f"; {note}" for note in snapshot.notes)
        if EVENTS_MISSING in reasons and not snapshot.coverage.events_from:
            notes += f"; {CREATED_AGAIN}"
        if ENTRIES_MISSING in reasons:
            notes += (
                "; without them the order of the events is not known, and accounts could get wrong points. Restore the "
                "ledger from a backup that has them (`loyalty ledger gaps` shows those before later entries). If there "
                "is no such backup, use --without-ledger"
            )
        if EVENTS_LOST in reasons:
            of_entries = problems.where(F.col("problem") == EVENTS_LOST).select(F.explode("differences").alias("it"))
            (example,) = of_entries.where(F.col("it.where") == Source.EVENT).select("it.what").limit(1).collect()
            notes += (
                f"; for example: {example.what}. If a newer release wrote the events, use the newer release. If Kafka "
                "has lost invoices, publish them again. docs/how-to/rebuild.md#lost-events has all causes. To continue "
                "without these events, use --accept-lost-events"
            )
        raise UserError(f"{number} accounts cannot be recomputed: {reasons}{notes}")


def check_receivers(accounts: DataFrame, snapshot: Snapshot) -> None:
    """Refuse if a credit or a move of an account must still be sent to a card, and only its pseudonym is known."""
    unsent = accounts.select(F.explode("nameless").alias("id")).join(sent_ids(snapshot), "id", "left_anti")
    if number := unsent.count():
        raise UserError(
            f"{number} transfers or moves have not reached their cards, and only pseudonyms of these cards are left: "
            "restore the ledger from a backup. It has the cards and the order of the entries"
        )


def sent_ids(snapshot: Snapshot) -> DataFrame:
    """The ids of all events: id."""
    return snapshot.events.records.select(event_id().alias("id")).distinct()
