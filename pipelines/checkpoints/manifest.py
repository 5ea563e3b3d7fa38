"""What a checkpoint was made with, kept beside it: a setting it cannot bear is refused before Spark trips over it."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

MANIFEST = "retail-loyalty.json"


class CheckpointMismatchError(RuntimeError):
    """A checkpoint was made with other settings, or by something else."""


def claim(
    spark: SparkSession, checkpoint: str, made_with: Mapping[str, str], remedies: Mapping[str, str] | None = None
) -> None:
    """Write down what a new checkpoint is made with, or compare an old one.

    Args:
        checkpoint: folder, any Hadoop URI.
        made_with: name to value of everything that is fixed for the life of the checkpoint.
        remedies: by name, what to do about a difference that no setting can mend.

    Raises:
        CheckpointMismatchError: naming each difference.
    """
    files, folder, manifest = _places(spark, checkpoint)
    if not files.exists(manifest):
        if files.exists(folder) and any(_is_foreign(status, manifest) for status in files.listStatus(folder)):
            raise CheckpointMismatchError(f"{checkpoint} is not empty and was not made by this project")
        files.mkdirs(folder)
        _write(files, manifest, json.dumps(dict(made_with), indent=2))
        return
    before = _read(files, manifest)
    different = [name for name in sorted({*before, *made_with}) if before.get(name) != made_with.get(name)]
    for remedy in (remedies[name] for name in different if remedies and name in remedies):
        raise CheckpointMismatchError(f"the checkpoint {checkpoint} is of another release of this project: {remedy}")
    if different:
        differences = (f"{name}: {before.get(name)!r} before, {made_with.get(name)!r} now" for name in different)
        raise CheckpointMismatchError(
            f"the checkpoint {checkpoint} was made with other settings ({'; '.join(differences)}); restore them: "
            "docs/how-to/manage-checkpoints.md says what a new checkpoint costs"
        )


def is_new(spark: SparkSession, checkpoint: str) -> bool:
    """Whether nothing has been kept under this checkpoint yet."""
    files, _, manifest = _places(spark, checkpoint)
    return not files.exists(manifest)


def _places(spark: SparkSession, checkpoint: str) -> tuple[Any, Any, Any]:
    jvm: Any = spark._jvm  # noqa: SLF001  # PySpark has no public way to Hadoop's file systems
    path = jvm.org.apache.hadoop.fs.Path
    folder = path(checkpoint)
    files = folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
    return files, folder, path(checkpoint, MANIFEST)


def _write(files: Any, manifest: Any, text: str) -> None:
    # Aside and then renamed: a crash in between leaves no manifest, not half of one.
    stream = files.create(_aside(manifest))
    stream.write(bytearray(text.encode()))
    stream.close()
    files.rename(_aside(manifest), manifest)


def _is_foreign(status: Any, manifest: Any) -> bool:
    return bool(status.getPath().getName() != _aside(manifest).getName())


def _aside(manifest: Any) -> Any:
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
