"""The rebuild of a lost checkpoint of the loyalty query on a real broker."""

import shutil
import time
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from confluent_kafka import TopicPartition

from pipelines.checkpoints import lock, manifest
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.queries import loyalty
from pipelines.queries.archive import ARCHIVE
from pipelines.queries.loyalty import LOYALTY_QUERY
from pipelines.reconciliation.audit import audit
from pipelines.reconciliation.rebuild import rebuild
from pipelines.reconciliation.snapshot import CREATED_AGAIN
from pipelines.reconciliation.waiting_returns import waiting_returns
from pipelines.runtime.query import DEDUPLICATION
from schemas import topics
from services.audit.facts import Source
from services.domain.events import Adjust, Block, Capture, Erase, Merge, Replace, Reserve, Transfer
from services.domain.programme import DAY
from services.errors import UserError
from services.messaging.administration import create_topics
from services.messaging.clients import admin
from services.programmes.file import ProgrammeError
from services.programmes.topic import publish_programme
from tests.support.builders import IDS, invoice
from tests.support.kafka import last_balances_of, publish_commands, publish_invoices, unique_records_of
from tests.support.processes import (
    delete_newest_commit_with_records,
    reconciliation_context,
    run_to_the_end,
    start_as_release_0_1,
)
from tests.support.waiting import wait_for

A, B, C, D = "CARD9001A", "CARD9002B", "CARD9003C", "CARD9004D"
OTHERS = (Source.LEDGER, Source.BALANCE)
PROGRAMME = """\
loyalty-factor: 0.02
time-basis: till
largest-backdating: P3D
cap-per-invoice: 19.50
cap-per-day: 19
blocked-cards: earn-nothing
"""
YESTERDAY = int(time.time()) // 86_400 * DAY - DAY // 2
"""A receipt of this time counts for yesterday. The other receipts are too old, so their arrival decides their day."""


@pytest.fixture
def settings(settings):
    return settings.model_copy(update={"timer_interval": timedelta(seconds=1)})


def delete_records(settings, *of):
    """Delete all records, as retention does."""
    ends = [TopicPartition(settings.name_of(topic), partition, -1) for topic in of for partition in range(3)]
    client = admin(settings)
    for future in client.delete_records(ends).values():
        future.result()


def create_again(settings, topic):
    """Delete and create the topic. Returns its name."""
    name, client = settings.name_of(topic), admin(settings)
    client.delete_topics([name])[name].result()
    wait_for("the deletion", lambda: name not in client.list_topics(timeout=30).topics)
    create_topics(settings)
    return name


@pytest.mark.usefixtures("topics_created")
@pytest.mark.timeout(1500)
def test_a_rebuild_restores_the_accounts_of_a_lost_checkpoint(spark, settings, monkeypatch):
    """Points, reservations and sequence numbers continue. Pending events are processed, and no invoice counts twice.

    A card is replaced, and its late invoice follows. Another card is merged. The programme has the time of the till and
    caps, and a blocked card earns nothing. The rebuild reads the topics, and after retention the archive.
    Without the archive it refuses to run. The first one replaces a checkpoint of release 0.1, which drops duplicates
    with Spark's own operator, and its first micro-batch fails once. The second one finds no checkpoint.
    """
    publish_programme(PROGRAMME, settings, effective_time=1)
    start_as_release_0_1(LOYALTY_QUERY, settings)
    checkpoint = Path(LOYALTY_QUERY.checkpoint(settings))
    before = after_the_first_events(spark, settings)
    assert_that_a_return_waits(spark, settings)
    publish_pending_events(settings)
    assert_refused_without(checkpoint, spark, settings)
    assert_no_rebuild_beside_the_query(spark, settings)

    after = after_a_rebuild_from_the_topics(spark, settings, monkeypatch)
    assert_that_the_accounts_continue(before, after)
    publish_duplicates_and_a_capture(settings)
    assert_that_no_invoice_counts_twice(spark, settings, before, after)
    replaced = after_replacing_a_card(spark, settings)

    lose_topics_and_checkpoint(checkpoint, spark, settings)
    rebuild_from_the_archive(spark, settings)
    assert replaced == last_balances_of(settings)
    assert_that_events_count_after_the_rebuild(spark, settings)
    assert_no_query_starts_after_an_interruption(spark, settings, monkeypatch)


def after_the_first_events(spark, settings):
    """Process events of the accounts A, B and C. Returns the balances."""
    publish_invoices(
        settings,
        *(invoice("I1", A, 1000.0, CreatedTime=YESTERDAY), invoice("I2", B, 50.0), invoice("I3", C, 10.0)),
        invoice("R1", B, -100.0, OriginalInvoiceNumber="I1"),
        invoice("R6", None, -10.0, CustomerType="GUEST", OriginalInvoiceNumber="I6"),  # waits for its purchase
    )
    publish_commands(
        settings,
        (A, Reserve(append_time=0, command_id="reserve", points=300)),
        (A, Transfer(append_time=0, command_id="gift", points=100, counterparty=B)),
        (C, Erase(append_time=0, command_id="erase")),
    )
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    run_to_the_end(spark, settings, LOYALTY_QUERY)  # process the credit of the transfer, and the return of another card
    balances = last_balances_of(settings)
    assert Decimal("17.00") == balances[A]["TotalLoyaltyPoints"]
    assert C not in balances, "erased"
    return balances


def assert_that_a_return_waits(spark, settings):
    """It waits for its purchase I6, during the return window and the time for which an event may wait in its topic."""
    (waiting,) = waiting_returns(reconciliation_context(spark, settings))
    assert ("R6", "I6", Decimal(-10)) == (waiting.invoice, waiting.original, waiting.amount)
    assert 99 * DAY < waiting.expires_time - waiting.append_time < 101 * DAY


def publish_pending_events(settings):
    """Publish events that are not processed when the checkpoint is lost."""
    publish_invoices(settings, invoice("I4", B, 100.0), invoice("I5", C, 30.0))
    publish_invoices(settings, invoice("R5", B, -15.0, OriginalInvoiceNumber="I5"))


def assert_refused_without(checkpoint, spark, settings):
    """Without its checkpoint the query refuses to start, and names the rebuild.

    New accounts would begin with sequence number 1, and readers of the changelog would ignore them.
    """
    assert DEDUPLICATION not in manifest.read(spark, str(checkpoint)), "release 0.1"
    elsewhere = checkpoint.rename(checkpoint.with_name("elsewhere"))
    expected = r"is new, but .*loyalty-balances continues another checkpoint.*loyalty rebuild"
    with pytest.raises(CheckpointMismatchError, match=expected):
        run_to_the_end(spark, settings, LOYALTY_QUERY)
    elsewhere.rename(checkpoint)


def assert_no_rebuild_beside_the_query(spark, settings):
    with (
        lock.hold(LOYALTY_QUERY.checkpoint(settings)),
        pytest.raises(lock.CheckpointInUseError, match="stop it first"),
    ):
        rebuild(reconciliation_context(spark, settings), archive=False, without_ledger=True)


def after_a_rebuild_from_the_topics(spark, settings, monkeypatch):
    """Rebuild the checkpoint of release 0.1. Its first micro-batch fails once. Returns the balances."""
    rebuilt = rebuild_with_a_failure(spark, settings, monkeypatch)
    assert (3, 3, []) == (rebuilt.accounts, rebuilt.late, rebuilt.differences)
    assert Path(rebuilt.aside).is_dir()
    assert DEDUPLICATION in manifest.read(spark, LOYALTY_QUERY.checkpoint(settings))
    return last_balances_of(settings)


def rebuild_with_a_failure(spark, settings, monkeypatch):
    """Let the first micro-batch of the new checkpoint fail once, after Spark has planned it."""
    write_stream, attempts = loyalty.write_stream, []

    def fail(batch, _):
        batch.count()
        raise OSError("the broker is away")

    def write(records, settings):
        attempts.append(settings)
        return write_stream(records, settings) if attempts[1:] else records.writeStream.foreachBatch(fail)

    with monkeypatch.context() as failing:
        failing.setattr(loyalty, "write_stream", write)
        rebuilt = rebuild(reconciliation_context(spark, settings), archive=False, without_ledger=True)
    assert 2 == len(attempts)
    return rebuilt


def assert_that_the_accounts_continue(before, after):
    """A has no pending event. B has an invoice, and a return of what C bought. C begins again after its erasure."""
    assert before[A] == after[A]
    assert (Decimal("4.00"), before[B]["Sequence"] + 2) == (after[B]["TotalLoyaltyPoints"], after[B]["Sequence"])
    assert before[B]["OpenedTime"] == after[B]["OpenedTime"]
    assert (Decimal("0.30"), 2) == (after[C]["TotalLoyaltyPoints"], after[C]["Sequence"])


def publish_duplicates_and_a_capture(settings):
    """The new invoice I6 is the purchase of the return that has waited. I2 was an invoice of another card."""
    repeats = invoice("I1", A, 1000.0), invoice("I4", B, 100.0), invoice("I2", A, 9.0)
    publish_invoices(settings, *repeats, invoice("I6", A, 10.0))
    publish_commands(settings, (A, Capture(append_time=0, command_id="capture", redemption_id="reserve")))


def assert_that_no_invoice_counts_twice(spark, settings, before, after):
    """A has three new entries: of I6, of its return and of the capture. B has none. An audit finds no difference."""
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    run_to_the_end(spark, settings, LOYALTY_QUERY, ARCHIVE)  # process the return that has waited, also for the rebuild
    report = audit(reconciliation_context(spark, settings), "", OTHERS, archive=False)
    assert ([], []) == (report.differences, report.unreadable)
    balances = last_balances_of(settings)
    assert (Decimal("14.00"), before[A]["Sequence"] + 3) == (balances[A]["TotalLoyaltyPoints"], balances[A]["Sequence"])
    assert after[B] == balances[B]


def after_replacing_a_card(spark, settings):
    """Replace the card A by D, merge C into B, block B, and repeat that batch. Returns the balances.

    Two invoices arrive after these commands. The one of A can earn 1.00 of its 2.00 points, as the cap of yesterday is
    19.00 and I1 has 18.00 after its return. The one of the blocked card B earns nothing.
    """
    publish_commands(
        settings,
        (A, Replace(append_time=0, command_id="replace", counterparty=D, reason="lost")),
        (B, Block(append_time=0, command_id="block", reason="r", actor="a")),
        (C, Merge(append_time=0, command_id="merge", counterparty=B, reason="r", actor="a")),
    )
    time.sleep(0.01)  # wait for the next millisecond of the broker
    publish_invoices(settings, invoice("I7", A, 100.0, CreatedTime=YESTERDAY), invoice("I8", B, 50.0))
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    delete_newest_commit_with_records(LOYALTY_QUERY.checkpoint(settings))
    run_to_the_end(spark, settings, LOYALTY_QUERY)  # the repeated batch
    run_to_the_end(spark, settings, LOYALTY_QUERY)  # D gets the account and the late invoice, B gets the account of C
    run_to_the_end(spark, settings, ARCHIVE)
    balances = last_balances_of(settings)
    assert (Decimal("0.00"), D) == (balances[A]["TotalLoyaltyPoints"], balances[A]["MovedTo"])
    assert (Decimal("15.00"), "") == (balances[D]["TotalLoyaltyPoints"], balances[D]["MovedTo"])
    assert (Decimal("0.00"), B) == (balances[C]["TotalLoyaltyPoints"], balances[C]["MovedTo"])
    assert Decimal("4.30") == balances[B]["TotalLoyaltyPoints"]
    return balances


def lose_topics_and_checkpoint(checkpoint, spark, settings):
    """Delete the events and then the checkpoint. Without the archive, a rebuild in between is refused."""
    delete_records(settings, topics.POS_INVOICES, topics.LOYALTY_COMMANDS)
    with pytest.raises(UserError, match=r"pos-invoices: records of before .* are no longer in the topic"):
        rebuild(reconciliation_context(spark, settings), archive=False, without_ledger=True)
    assert checkpoint.exists(), "what is refused changes nothing"
    shutil.rmtree(checkpoint)


def rebuild_from_the_archive(spark, settings):
    """There is no checkpoint that the rebuild could put aside, and no event is pending."""
    rebuilt = rebuild(reconciliation_context(spark, settings), archive=True, without_ledger=True)
    assert (4, 0, None, []) == (rebuilt.accounts, rebuilt.late, rebuilt.aside, rebuilt.differences)


def assert_that_events_count_after_the_rebuild(spark, settings):
    """B gets a correction. An audit finds nothing, and the entries of A have the numbers 1, 2, 3 …"""
    publish_commands(settings, (B, Adjust(append_time=0, command_id="adjust", points=5, reason="r", actor="a")))
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    report = audit(reconciliation_context(spark, settings), "", OTHERS, archive=True)
    assert ([], [], []) == (report.differences, report.unreadable, report.notes)
    assert Decimal("4.35") == last_balances_of(settings)[B]["TotalLoyaltyPoints"]
    sequences = sorted(
        each["Sequence"] for each in unique_records_of(settings, topics.LOYALTY).values() if each["CustomerCardNo"] == A
    )
    assert list(range(1, len(sequences) + 1)) == sequences


def assert_no_query_starts_after_an_interruption(spark, settings, monkeypatch):
    """The rebuild ends while it writes records, or as soon as its checkpoint exists.

    A query would decide the events in another order, or would begin with empty accounts.
    """
    for step in ("reconciliation.rebuild.write_batch", "checkpoints.retention.check"):
        with monkeypatch.context() as interrupted:
            interrupted.setattr(f"pipelines.{step}", MagicMock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                rebuild(reconciliation_context(spark, settings), archive=True, without_ledger=True)
        with pytest.raises(CheckpointMismatchError, match="interrupted"):
            run_to_the_end(spark, settings, LOYALTY_QUERY)


@pytest.mark.usefixtures("topics_created")
@pytest.mark.timeout(900)
def test_an_archive_with_a_gap_or_another_key_is_refused(spark, settings, tmp_path):
    """After an accepted loss the archive lacks events. A rebuild refuses to make accounts from the remaining events."""
    settings = settings.model_copy(update={"pseudonym_key_file": tmp_path / "monday.key"})
    publish_invoices(settings, invoice("I1", A, 1000.0))
    run_to_the_end(spark, settings, LOYALTY_QUERY, ARCHIVE)
    publish_invoices(settings, invoice("I2", A, 500.0))
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    delete_records(settings, topics.POS_INVOICES)
    publish_invoices(settings, invoice("I3", A, 100.0))
    with pytest.raises(UserError, match="pos-invoices"):
        run_to_the_end(spark, settings, ARCHIVE)
    create_again(settings, topics.LOYALTY_COMMANDS)
    run_to_the_end(spark, settings.model_copy(update={"accept_data_loss": True}), LOYALTY_QUERY, ARCHIVE)
    run_to_the_end(spark, settings, LOYALTY_QUERY, ARCHIVE)
    delete_records(settings, topics.POS_INVOICES)

    with pytest.raises(
        UserError, match=r"archive .* can lack .*pos-invoices \d from offset 1 to 1, which its query was allowed"
    ):
        rebuild(reconciliation_context(spark, settings), archive=True, without_ledger=True)
    assert Path(LOYALTY_QUERY.checkpoint(settings)).exists(), "a refusal changes nothing"

    tuesday = settings.model_copy(update={"pseudonym_key_file": tmp_path / "tuesday.key"})
    with pytest.raises(CheckpointMismatchError, match="pseudonyms of another key"):
        run_to_the_end(spark, tuesday, ARCHIVE)
    with pytest.raises(CheckpointMismatchError, match="LOYALTY_PSEUDONYM_KEY_FILE"):
        rebuild(reconciliation_context(spark, tuesday), archive=True, without_ledger=True)


@pytest.mark.usefixtures("topics_created")
def test_a_query_does_not_start_with_a_lost_programme(spark, settings):
    """The new topic has no version. The next purchase would earn by version 0."""
    publish_programme("loyalty-factor: 0.05\n", settings, effective_time=1_000)
    run_to_the_end(spark, settings, LOYALTY_QUERY)

    name = create_again(settings, topics.LOYALTY_PROGRAMMES)

    with pytest.raises(UserError, match=f"{name} was created again"):
        LOYALTY_QUERY.start(spark, IDS, settings, available_now=True)


@pytest.mark.usefixtures("topics_created")
def test_a_version_that_is_published_during_a_rebuild_or_an_audit_is_noticed(spark, settings):
    """It can take effect before the last event that the command reads."""
    context = reconciliation_context(spark, settings)
    publish_programme("loyalty-factor: 0.05\n", settings)

    with pytest.raises(ProgrammeError, match="run the command again"):
        rebuild(context, archive=False, without_ledger=True)
    with pytest.raises(ProgrammeError, match="run the command again"):
        audit(context, "", OTHERS, archive=False)


def with_another_archive_than_the_old_one(spark, settings):
    """After the retention, a rebuild would take the archived events of the old topic for events of the new topic."""
    refusal = r"events of other topics: .* The new topics need another LOYALTY_ARCHIVE_DIR"
    with pytest.raises(CheckpointMismatchError, match=refusal):
        rebuild(reconciliation_context(spark, settings), archive=True, without_ledger=True)
    shutil.rmtree(ARCHIVE.checkpoint(settings))
    with pytest.raises(CheckpointMismatchError, match=refusal):
        run_to_the_end(spark, settings, ARCHIVE)
    return settings.model_copy(update={"archive_dir": f"{settings.archive_dir}-2"})


@pytest.mark.usefixtures("topics_created")
@pytest.mark.timeout(900)
def test_a_rebuild_from_a_topic_that_was_created_again_is_refused(spark, settings):
    """The new topic begins at offset 0 and looks complete. Accounts would lose all points of the old topic."""
    publish_invoices(settings, invoice("I1", A, 1000.0))
    run_to_the_end(spark, settings, LOYALTY_QUERY, ARCHIVE)
    name = create_again(settings, topics.POS_INVOICES)
    publish_invoices(settings, invoice("I2", A, 100.0))
    settings = with_another_archive_than_the_old_one(spark, settings)
    before = last_balances_of(settings)

    for archive in (False, True):
        if archive:
            run_to_the_end(spark, settings, ARCHIVE)
        with pytest.raises(UserError, match=r"1 accounts cannot be recomputed: events are missing.* created again"):
            rebuild(reconciliation_context(spark, settings), archive=archive, without_ledger=True)
    report = audit(reconciliation_context(spark, settings), "", OTHERS, archive=False)
    assert (1, [CREATED_AGAIN]) == (report.not_recomputed, report.notes)
    assert before == last_balances_of(settings), "a refusal changes nothing"
    with pytest.raises(UserError, match=f"{name} was created again"):
        LOYALTY_QUERY.start(spark, IDS, settings, available_now=True)
