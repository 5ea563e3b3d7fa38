"""The versions of the programme that a query with a checkpoint has used.

Kafka can lose the newest version. Then purchases would earn by the version before it, and the archive would skip the
customers of a type that the lost version added.
"""

import json

from pyspark.sql import SparkSession

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import CheckpointMismatchError, read_json
from services.domain.formats import short_time_text
from services.domain.programme import Programmes

_VERSIONS = "programme-versions.json"
"""The file in the checkpoint with the start times of all versions that the query knew at its last start."""


def require_versions(spark: SparkSession, checkpoint: str, versions: Programmes) -> None:
    """Remember the versions of the programme. Raise CheckpointMismatchError if one is gone or has another time."""
    before, now = read_json(spark, checkpoint, _VERSIONS) or [], [each.effective_time for each in versions.versions]
    if now[: len(before)] != before:
        number = next(number for number, time in enumerate(before) if now[number : number + 1] != [time])
        raise CheckpointMismatchError(
            f"version {number} of the programme is lost or has another time, and the checkpoint {checkpoint} says that "
            f"it takes effect at {short_time_text(before[number])}. Other rules could decide invoices: restore the "
            "records of loyalty-programmes (docs/how-to/back-up-and-restore.md#the-versions-of-the-programme)"
        )
    if now != before:
        Files(spark, checkpoint).write(_VERSIONS, json.dumps(now))
