"""What the archive keeps of an event."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipelines.queries import archive
from pipelines.queries.archive import _without_cards
from pipelines.sinks import parquet
from pipelines.sinks.parquet import ParquetSink
from schemas.topics import POS_INVOICES, Topic
from services.codecs.events import ARCHIVED, command_record
from services.domain.events import Transfer
from services.messaging.avro import record_decoder, record_encoder
from services.settings import Settings
from tests.support.builders import CARD, IDS
from tests.support.ledger import PSEUDONYMS


def test_an_archived_command_has_pseudonyms_and_no_free_texts() -> None:
    """An erasure does not change the files of the archive."""
    gift = Transfer(append_time=0, command_id="C", points=50, counterparty="4712", reason="for Mrs Smith", actor=CARD)
    encode = record_encoder("LoyaltyCommand", IDS.id_of("LoyaltyCommand"))
    decode = record_decoder("LoyaltyCommand", IDS.writer_schema)

    archived = decode(_without_cards(PSEUDONYMS)(encode(command_record(CARD, gift))))

    assert (PSEUDONYMS.of(CARD), PSEUDONYMS.of("4712")) == (archived["CustomerCardNo"], archived["Counterparty"])
    assert ("", ARCHIVED) == (archived["Reason"], archived["Actor"])
    assert archived["Points"] == command_record(CARD, gift)["Points"]


@pytest.mark.parametrize(
    ("archive_dir", "named"), [("var/archive", str(Path.cwd() / "var/archive")), ("s3a://bucket/a", "s3a://bucket/a")]
)
def test_a_new_archive_says_which_older_records_it_lacks(
    monkeypatch: pytest.MonkeyPatch, archive_dir: str, named: str
) -> None:
    """With a relative folder, a pipeline in another working directory begins a second archive."""
    settings = Settings(archive_dir=archive_dir)
    deleted: set[Topic] = set()
    monkeypatch.setattr(archive, "has_deleted", lambda topic, _: topic in deleted)
    with capture_logs() as logs:
        archive._report_first_start(settings)
        assert [] == logs, "a new system has all records"
        deleted.add(POS_INVOICES)
        archive._report_first_start(settings)
    assert [("warning", named, ["pos-invoices"])] == [
        (each["log_level"], each["folder"], each["topics"]) for each in logs
    ]


@pytest.mark.parametrize(
    ("folders", "first"), [([], 0), (["batch=-4712"], 0), (["batch=-4712", "batch=3", "_SUCCESS"], 4)]
)
def test_a_new_checkpoint_numbers_its_batches_after_those_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, folders: list[str], first: int
) -> None:
    """A number below 0 belongs to a schema id whose records were archived later. Rows without a key are refused first,
    because the sink cannot omit them.
    """
    names = {"": ["_checkpoint", "date=2026-11-29"], "date=2026-11-29": folders}
    monkeypatch.setattr(parquet, "Files", lambda *_: SimpleNamespace(names=lambda folder="": names[folder]))
    found: list[Any] = []
    monkeypatch.setattr(parquet, "require_keys", lambda _, *given: found.append(given))
    monkeypatch.setattr(parquet, "OlderRows", lambda *given: found.append(given[3]()))
    ParquetSink(SimpleNamespace(), "archive", "archive/_checkpoint", {})  # type: ignore[arg-type]  # no Spark
    assert [("archive", {}), first] == found
