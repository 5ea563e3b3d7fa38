"""The archive of events on a real broker."""

import json
import shutil
from decimal import Decimal
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow.dataset
import pytest
from structlog.testing import capture_logs

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.learned_ids import LearnedIds
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.queries.archive import ARCHIVE
from pipelines.runtime.query_metrics import report
from schemas import topics
from services.codecs.events import command_record, decode_event
from services.domain.events import Adjust, Purchase, Transfer
from services.messaging.avro import encoder, record_encoder
from services.pseudonyms import pseudonyms
from tests.integration.pipeline_runs import CARDS, A, B, LaterIds, run, send
from tests.support.builders import IDS, invoice
from tests.support.kafka import publish, publish_invoices
from tests.support.processes import delete_newest_commit, run_to_the_end


@pytest.mark.usefixtures("topics_created")
def test_the_archive_has_every_event_once_and_no_card(spark, settings):
    """Each purchase and command is one row with a pseudonym, despite duplicates. No file contains a card."""
    transfer = Transfer(append_time=0, command_id="t1", points=400, counterparty=B)
    publish_invoices(settings, invoice("I1", A, 1000.0), invoice("I1", A, 1000.0), invoice("I2", B, 50.0))
    send(settings, A, transfer, transfer)
    run(spark, settings, ARCHIVE)
    delete_newest_commit(ARCHIVE.checkpoint(settings))
    publish_invoices(settings, invoice("I2", B, 50.0), invoice("I3", B, 25.0))
    run(spark, settings, ARCHIVE)

    rows = archived(settings)
    of = pseudonyms(settings.pseudonym_key_file).of
    events = {(row["pseudonym"], decode_event(row["append_time"], row["event"])) for row in rows}
    assert 4 == len(rows)
    assert {(of(A), "I1"), (of(B), "I2"), (of(B), "I3"), (of(A), "t1")} == {(who, e.event_id) for who, e in events}
    assert {of(B)} == {event.counterparty for _, event in events if isinstance(event, Transfer)}
    assert {Decimal("1000.0")} == {e.total_amount for _, e in events if isinstance(e, Purchase) and e.event_id == "I1"}
    assert {"topic", "partition", "offset", "date", "batch"} <= set(rows[0])
    assert not any(card in repr(row) for row in rows for card in CARDS)

    # Without a lost version of the programme, the archive could skip the customers of a type for ever.
    Files(spark, ARCHIVE.checkpoint(settings)).write("programme-versions.json", "[0, 1000]")
    with pytest.raises(CheckpointMismatchError, match=r"version 1 of the programme is lost"):
        run(spark, settings, ARCHIVE)


def archived_events(settings):
    return sorted(decode_event(row["append_time"], row["event"]).event_id for row in archived(settings))


def archived(settings):
    files = pyarrow.dataset.dataset(settings.archive_dir, format="parquet", partitioning="hive")
    return files.to_table().to_pylist()


@pytest.mark.usefixtures("topics_created")
def test_the_archive_adds_the_events_that_it_has_skipped_when_it_learns_their_schema_id(spark, settings, monkeypatch):
    """The driver of another query can know the id earlier, so accounts have these events.

    The query starts twice without the ids. The first start that knows them fails after it has added the events, and the
    next one adds none twice.
    """
    publish_invoices(settings, invoice("I0", A, 10.0))
    run(spark, settings, ARCHIVE)
    later = record_encoder("PosInvoice", 4711)(invoice("I1", A, 1000.0))
    known = encoder(topics.POS_INVOICES, IDS)(invoice("I2", A, 50.0))
    publish(settings, topics.POS_INVOICES, [(b"STR1", later), (b"STR1", known)])
    adjustment = command_record(A, Adjust(append_time=0, command_id="a1", points=700))
    publish(settings, topics.LOYALTY_COMMANDS, [(A.encode(), record_encoder("LoyaltyCommand", 4712)(adjustment))])
    for _ in range(2):
        run(spark, settings, ARCHIVE)
    assert ["I0", "I2"] == archived_events(settings)

    with monkeypatch.context() as crash:
        crash.setattr(LearnedIds, "save", MagicMock(side_effect=OSError("disk full")))
        with capture_logs() as lines, pytest.raises(OSError, match="disk full"):
            ARCHIVE.start(spark, LaterIds(), settings, available_now=True)
    told = [(line["query"], line["records"]) for line in lines if "do not restart" in line["event"]]
    assert [("archive", 3), ("archive", 1)] == told
    publish_invoices(settings, invoice("I3", A, 25.0))
    for _ in range(2):
        ARCHIVE.start(spark, LaterIds(), settings, available_now=True).awaitTermination()

    assert ["I0", "I1", "I2", "I3", "a1"] == archived_events(settings)
    rows = archived(settings)
    assert [-4713, -4712, 0, 1, 2] == sorted(row["batch"] for row in rows)
    assert not any(card in repr(row) for row in rows for card in CARDS)


@pytest.mark.usefixtures("topics_created")
def test_a_new_checkpoint_on_an_old_archive_adds_what_it_lacks(spark, settings, tmp_path):
    """Micro-batches count from 0 again, and replace no older folder. Another key is refused, and changes nothing."""
    publish_invoices(settings, invoice("I1", A, 1000.0), invoice("I2", B, 50.0))
    send(settings, A, Transfer(append_time=0, command_id="t1", points=400, counterparty=B))
    run(spark, settings, ARCHIVE)
    before = archived(settings)
    assert 3 == len(before)

    shutil.rmtree(ARCHIVE.checkpoint(settings))
    publish_invoices(settings, invoice("I1", A, 1000.0), invoice("I3", B, 25.0))
    another = settings.model_copy(update={"pseudonym_key_file": tmp_path / "another.key"})
    with pytest.raises(CheckpointMismatchError, match="has pseudonyms of another key than"):
        run(spark, another, ARCHIVE)
    assert not Path(ARCHIVE.checkpoint(settings)).exists()
    for progress in run_to_the_end(spark, settings, ARCHIVE):
        report(json.loads(progress.json))  # fails if more rows leave the deduplication than enter it
    with pytest.raises(CheckpointMismatchError, match="has pseudonyms of another key than"):
        run(spark, another, ARCHIVE)

    rows = archived(settings)
    assert all(row in rows for row in before), "the old rows and their folders stay"
    new = [row for row in rows if row not in before]
    assert ["I3"] == [decode_event(row["append_time"], row["event"]).event_id for row in new]
    assert {row["batch"] for row in before}.isdisjoint(row["batch"] for row in new)
    delete_newest_commit(ARCHIVE.checkpoint(settings))
    run(spark, settings, ARCHIVE)
    assert sorted(map(repr, rows)) == sorted(map(repr, archived(settings))), "the repeated batch adds nothing"
