"""Maintains an exported Delta table: merges small files, and deletes files that nobody reads any more."""

from typing import NamedTuple

from deltalake.exceptions import CommitFailedError

from services.errors import UserError
from services.settings import Settings
from services.sql.files import delta_table, locked
from services.start_up import local_folder

KEEP_HOURS = 7 * 24
"""Readers may still use a file for this time after a compaction has replaced it. It is Delta's default."""


class Maintained(NamedTuple):
    """What a maintenance did: the files that it merged, the files that it wrote, and the old files that it deleted."""

    merged: int
    written: int
    deleted: int


def maintain(settings: Settings, keep_hours: int = KEEP_HOURS) -> Maintained:
    """Merge the small files of each day, and delete files that the table has not needed for ``keep_hours``.

    The export can run meanwhile: a commit of Delta succeeds or fails as a whole. On a local folder another run
    of this function waits. Elsewhere only one may run: Delta does not find the conflict of two compactions, and the
    table would have the rows twice. Raises UserError without a Delta table, or if the export has changed the same
    files.
    """
    table = delta_table(settings)
    if table is None:
        raise UserError(
            f"{settings.export_dir} is not a Delta table: maintenance is for an export with LOYALTY_EXPORT_FORMAT=delta"
        )
    with locked(str(local_folder(settings.export_dir) or settings.export_dir)):
        table.update_incremental()
        try:
            merged = table.optimize.compact()
        except CommitFailedError as error:
            raise UserError(
                f"the export has changed the files that were merged: run the command again ({error})"
            ) from error
        # A full vacuum would also find files of a micro-batch that died before its commit. But it deletes each file of
        # the folder that the table does not name, also an archive or a checkpoint that an operator keeps there.
        deleted = table.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False)
    return Maintained(merged["numFilesRemoved"], merged["numFilesAdded"], len(deleted))
