"""The manifest of a checkpoint has the values that must not change between two runs, and refuses other values."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from pipelines.checkpoints.files import UNFINISHED, Files
from services.errors import UserError

MANIFEST = "retail-loyalty.json"


class CheckpointMismatchError(UserError):
    """The checkpoint was made with other settings or by another program."""

    exit_status = 2


def claim(spark: SparkSession, checkpoint: str, made_with: Mapping[str, str], remedies: Mapping[str, str]) -> None:
    """Write the manifest of a new checkpoint, or compare the manifest of an old one.

    A manifest of an older release may lack a value. If the value has no remedy, the manifest adopts the current value.

    Args:
        checkpoint: a Hadoop URI.
        made_with: names and values that are fixed for the life of the checkpoint.
        remedies: by name, what to do if a value differs and no setting can restore it.

    Raises:
        CheckpointMismatchError: names each difference.
    """
    files = Files(spark, checkpoint)
    if not files.exists(MANIFEST):
        if set(files.names()) - {f"{MANIFEST}{UNFINISHED}"}:
            raise CheckpointMismatchError(f"{checkpoint} has files of another program: choose an empty folder")
        files.write(MANIFEST, json.dumps(dict(made_with), indent=2))
        return
    before = read(spark, checkpoint)
    adopted = {name: value for name, value in made_with.items() if name not in before and name not in remedies}
    before |= adopted
    require_same(checkpoint, before, made_with, remedies)
    if adopted:
        files.write(MANIFEST, json.dumps(before, indent=2))


def require_same(
    checkpoint: str, before: Mapping[str, str], made_with: Mapping[str, str], remedies: Mapping[str, str] = {}
) -> None:
    """Raise CheckpointMismatchError if the values of a manifest differ from these. For the arguments see ``claim``."""
    different = [name for name in sorted({*before, *made_with}) if before.get(name) != made_with.get(name)]
    if remedy := next((remedies[name] for name in different if name in remedies), None):
        raise CheckpointMismatchError(f"the checkpoint {checkpoint} belongs to another release: {remedy}")
    if different:
        differences = (f"{name}: {before.get(name)!r} before, {made_with.get(name)!r} now" for name in different)
        raise CheckpointMismatchError(
            f"the checkpoint {checkpoint} was made with other settings ({'; '.join(differences)}); restore them, or "
            "read in docs/how-to/manage-checkpoints.md what a new checkpoint costs"
        )


def read(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """The manifest, empty if there is none. Raises CheckpointMismatchError if it is damaged."""
    made_with: dict[str, str] = read_json(spark, checkpoint, MANIFEST)
    return made_with


def read_json(spark: SparkSession, checkpoint: str, name: str) -> Any:
    """The value of a file in the checkpoint, ``{}`` if there is no file.

    Raises CheckpointMismatchError if the file is damaged.
    """
    files = Files(spark, checkpoint)
    try:
        # The guides let an operator edit these files. A truncated file is no JSON.
        return json.loads(files.read(name, verify=False)) if files.exists(name) else {}
    except ValueError as error:
        raise CheckpointMismatchError(
            f"{checkpoint}/{name} is damaged: {error}; see docs/how-to/manage-checkpoints.md#a-file-is-damaged"
        ) from error
