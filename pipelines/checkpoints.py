"""What a checkpoint was made with, kept beside it: a setting it cannot bear is refused before Spark trips over it."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

_MANIFEST = "retail-loyalty.json"


class CheckpointMismatchError(RuntimeError):
    """A checkpoint was made with other settings, or by something else."""


def claim(spark: SparkSession, checkpoint: str, made_with: Mapping[str, str]) -> None:
    """Write down what a new checkpoint is made with, or compare an old one.

    Args:
        checkpoint: folder, any Hadoop URI.
        made_with: name to value of everything that is fixed for the life of the checkpoint.

    Raises:
        CheckpointMismatchError: naming each difference.
    """
    jvm: Any = spark._jvm  # noqa: SLF001  # PySpark offers no public way to Hadoop's file systems
    folder = jvm.org.apache.hadoop.fs.Path(checkpoint)
    manifest = jvm.org.apache.hadoop.fs.Path(checkpoint, _MANIFEST)
    files = folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
    if not files.exists(manifest):
        if files.exists(folder) and files.listStatus(folder):
            raise CheckpointMismatchError(f"{checkpoint} is not empty and was not made by this project")
        files.mkdirs(folder)
        stream = files.create(manifest)
        stream.write(bytearray(json.dumps(dict(made_with), indent=2).encode()))
        stream.close()
        return
    stream = files.open(manifest)
    before = json.loads(bytes(stream.readAllBytes()))
    stream.close()
    differences = [
        f"{name}: {before.get(name)!r} before, {made_with.get(name)!r} now"
        for name in sorted({*before, *made_with})
        if before.get(name) != made_with.get(name)
    ]
    if differences:
        raise CheckpointMismatchError(
            f"the checkpoint {checkpoint} was made with other settings ({'; '.join(differences)}); "
            "restore them, or start with an empty checkpoint folder"
        )
