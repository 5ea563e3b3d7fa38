"""What reads the archive."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines.reconciliation.events import read_archive
from services.errors import SettingsError


@pytest.mark.parametrize("exists", [False, True])
def test_a_missing_or_empty_archive_is_named(spark: SparkSession, tmp_path: Path, *, exists: bool) -> None:
    """The error says what to run. An interrupted first run leaves a folder without files."""
    archive = tmp_path / "archive"
    if exists:
        (archive / "_checkpoint").mkdir(parents=True)

    with pytest.raises(SettingsError, match=r"archive has no archived events: set LOYALTY_ARCHIVE_DIR to the"):
        read_archive(spark, str(archive))
