"""The manifest of a checkpoint names what must not change between two runs, and refuses other settings at start."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

MANIFEST = "retail-loyalty.json"


class CheckpointMismatchError(RuntimeError):
    """The checkpoint was made with other settings or by another program."""


def claim(
    spark: SparkSession, checkpoint: str, made_with: Mapping[str, str], remedies: Mapping[str, str] | None = None
) -> None:
    """Write the manifest of a new checkpoint, or compare that of an old one.

    Args:
        checkpoint: a Hadoop URI.
        made_with: names and values that are fixed for the life of the checkpoint.
        remedies: by name, what to do if a value differs and no setting can restore it.

    Raises:
        CheckpointMismatchError: names each difference.
    """
    files, folder, manifest = _paths(spark, checkpoint)
    if not files.exists(manifest):
        if files.exists(folder) and any(_is_foreign(status, manifest) for status in files.listStatus(folder)):
            raise CheckpointMismatchError(
                f"{checkpoint} is not empty and was not made by this project: choose an empty folder"
            )
        files.mkdirs(folder)
        _write(files, manifest, json.dumps(dict(made_with), indent=2))
        return
    before = _read(files, manifest)
    different = [name for name in sorted({*before, *made_with}) if before.get(name) != made_with.get(name)]
    for remedy in (remedies[name] for name in different if remedies and name in remedies):
        raise CheckpointMismatchError(f"the checkpoint {checkpoint} belongs to another release: {remedy}")
    if different:
        differences = (f"{name}: {before.get(name)!r} before, {made_with.get(name)!r} now" for name in different)
        raise CheckpointMismatchError(
            f"the checkpoint {checkpoint} was made with other settings ({'; '.join(differences)}); restore them, or "
            "read in docs/operations.md what a new checkpoint costs"
        )


def is_new(spark: SparkSession, checkpoint: str) -> bool:
    """Whether the checkpoint has no manifest yet."""
    files, _, manifest = _paths(spark, checkpoint)
    return not files.exists(manifest)


def _paths(spark: SparkSession, checkpoint: str) -> tuple[Any, Any, Any]:
    jvm: Any = spark._jvm  # noqa: SLF001  # PySpark has no public access to Hadoop's file systems
    path = jvm.org.apache.hadoop.fs.Path
    folder = path(checkpoint)
    files = folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
    return files, folder, path(checkpoint, MANIFEST)


def _write(files: Any, manifest: Any, text: str) -> None:
    # Writes another file and renames it, so that a crash leaves either the whole manifest or none.
    stream = files.create(_temporary(manifest))
    stream.write(bytearray(text.encode()))
    stream.close()
    files.rename(_temporary(manifest), manifest)


def _is_foreign(status: Any, manifest: Any) -> bool:
    return bool(status.getPath().getName() != _temporary(manifest).getName())


def _temporary(manifest: Any) -> Any:
    return manifest.suffix(".new")


def _read(files: Any, manifest: Any) -> dict[str, str]:
    stream = files.open(manifest)
    text = bytes(stream.readAllBytes())
    stream.close()
    try:
        made_with: dict[str, str] = json.loads(text)
    except ValueError as error:
        raise CheckpointMismatchError(f"{manifest.toString()} cannot be read: {error}") from error
    return made_with
