"""What reads the archive, and what it keeps when it learns a schema id."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines.queries import archive
from pipelines.reconciliation.events import read_archive
from schemas.topics import LOYALTY_COMMANDS
from services.codecs.events import command_record
from services.domain.events import Adjust
from services.errors import SettingsError
from services.messaging.avro import record_encoder
from services.settings import Settings
from tests.support.builders import IDS

FIRST_DAY, SECOND_DAY = datetime(2026, 11, 22, 12, tzinfo=UTC), datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.mark.parametrize("exists", [False, True])
def test_a_missing_or_empty_archive_is_named(spark: SparkSession, tmp_path: Path, *, exists: bool) -> None:
    """The error says what to run. An interrupted first run leaves a folder without files."""
    folder = tmp_path / "archive"
    if exists:
        (folder / "_checkpoint").mkdir(parents=True)

    with pytest.raises(SettingsError, match=r"archive has no archived events: set LOYALTY_ARCHIVE_DIR to the"):
        read_archive(spark, str(folder))


def test_an_event_stays_in_the_archive_if_kafka_deletes_it_while_the_archive_learns_a_schema_id(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start can fail after it has archived skipped events. The next start reads only what the topic still has."""
    settings = Settings(archive_dir=str(tmp_path / "archive"), pseudonym_key_file=tmp_path / "pseudonym.key")
    encode = record_encoder("LoyaltyCommand", IDS.id_of("LoyaltyCommand"))
    records = spark.createDataFrame(
        [
            (
                b"4711",
                encode(command_record("4711", Adjust(append_time=0, command_id=f"A{offset}", points=1))),
                "commands",
                0,
                offset,
                day,
            )
            for offset, day in enumerate((FIRST_DAY, SECOND_DAY, SECOND_DAY, SECOND_DAY))
        ],
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp",
    )
    context: Any = SimpleNamespace(spark=spark, settings=settings, ids=IDS)
    learned: Any = SimpleNamespace(new={LOYALTY_COMMANDS: [IDS.id_of("LoyaltyCommand")]})
    (tmp_path / "archive" / "_checkpoint").mkdir(parents=True)

    # Between the starts, a driver that does not know the schema id can skip further records of the same day.
    for first, end in ((0, 3), (2, 4)):
        remaining = records.where(F.col("offset").between(first, end - 1))
        monkeypatch.setattr(archive, "read_again", lambda *_, remaining=remaining: remaining)
        archive._archive_skipped(context, "checkpoint", learned)

    rows = spark.read.parquet(settings.archive_dir).select("offset", "date").collect()
    assert [(0, FIRST_DAY.date()), *((offset, SECOND_DAY.date()) for offset in (1, 2, 3))] == sorted(map(tuple, rows))
