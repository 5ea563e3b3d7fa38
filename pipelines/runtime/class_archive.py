"""The archive of Spark's classes: Java loads them from it without reading jars and without verifying bytecode again.

A start of Spark with a first job takes 6 instead of 9 seconds of processor time (docs/lab/queries.md). Java ignores an
archive that does not fit its version, its jars or its options.
"""

import shlex
from importlib.metadata import version
from pathlib import Path

SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""The Java options that turn off what Java logs about archives."""


def archive_in(jars: Path) -> Path:
    """The archive in the folder with Spark's jars. It need not exist."""
    return jars.resolve() / f"classes-{version('pyspark')}.jsa"


def options(jars: Path) -> str:
    """The Java options that use the archive. Empty without one."""
    archive = archive_in(jars)
    # Spark splits the options as a shell does.
    return f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} {SILENT}" if archive.is_file() else ""
