"""The loyalty query on a real broker: commands, timers, programme versions and initial accounts."""

import json
import shutil
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from typer.testing import CliRunner

from infra.local.stack import variables_of
from pipelines.accounts.state_layout import ACCOUNTS
from pipelines.checkpoints import later_balances
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.queries.fan_out import FAN_OUT
from pipelines.queries.loyalty import LOYALTY_QUERY, Seed, seeded
from pipelines.runtime.state_calls import SHARED, decode
from schemas import topics
from services.audit_trail import read_trail
from services.cli import app
from services.codecs.events import command_record
from services.codecs.state import decode_account, encode_account
from services.domain.events import Adjust, Capture, Erase, Reserve, Transfer
from services.messaging.avro import decoder, encoder, record_encoder
from services.messaging.dead_letters import DeadLetters
from services.messaging.replaying import replay
from services.programmes.topic import publish_programme
from services.pseudonyms import pseudonyms
from tests.integration.pipeline_runs import A, B, LaterIds, run, send
from tests.support.builders import IDS, invoice
from tests.support.kafka import headers_of, publish, publish_invoices, read_all
from tests.support.processes import (
    dead_letters_counted,
    delete_all_batches_but_the_first,
    delete_newest_commit_with_records,
    start_pipeline,
    wait_until,
)
from tests.support.waiting import TOPIC_POLL_SECONDS

IMPORTED = "CARD7003C"


def import_file(settings, file):
    """Run ``loyalty import``, which the audit trail records. It uses the key of the pipeline."""
    pseudonyms(settings.pseudonym_key_file)  # the pipeline may not have run yet
    before = len(list(read_trail(settings)))
    command = ["import", str(file), "--name", "opening", "--json"]
    done = CliRunner().invoke(app, command, env=variables_of(settings))
    assert (0, 1) == (done.exit_code, json.loads(done.stdout)["sent"])
    recorded = list(read_trail(settings))[before:]
    assert [("loyalty import", "begun"), ("loyalty import", "done")] == [
        (each["Action"], each["Outcome"]) for each in recorded
    ]


def latest(settings, topic):
    """Key to last record, or None for a tombstone."""
    decode = decoder(topic, IDS)
    return {
        (message.key() or b"").decode(): None if message.value() is None else decode(bytes(message.value() or b""))
        for message in read_all(settings, topic)
    }


def effects(settings, topic):
    """CloudEvents id to value. Fails if two duplicates differ."""
    found = {}
    for message in read_all(settings, topic):
        identity = headers_of(message)["ce_id"].decode()
        assert message.value() == found.setdefault(identity, message.value()), (
            f"{identity} was written twice with different bytes"
        )
    return found


def entries(settings, card):
    """Kind and points of the card's entries, in order. Checks that sequence numbers are 1, 2, 3 …"""
    decode = decoder(topics.LOYALTY, IDS)
    found = [decode(value) for value in effects(settings, topics.LOYALTY).values()]
    mine = sorted(
        (each for each in found if each["CustomerCardNo"] == card), key=lambda e: (e["OpenedTime"], e["Sequence"])
    )
    opened = {each["OpenedTime"] for each in mine}
    for each in opened:
        assert [e["Sequence"] for e in mine if e["OpenedTime"] == each] == list(
            range(1, 1 + sum(e["OpenedTime"] == each for e in mine))
        )
    return [(each["Kind"], each["EarnedLoyaltyPoints"]) for each in mine]


@pytest.mark.usefixtures("topics_created")
def test_commands_are_decided_exactly_once(spark, settings, tmp_path, monkeypatch):
    """Each kind of command writes its records exactly once, despite duplicates and repeated batches.

    At the end, the query refuses a copy of its checkpoint from before these commands. It refuses no other checkpoint,
    also if nothing allows for different clocks.
    """
    monkeypatch.setattr(later_balances, "CLOCK_DIFFERENCE", timedelta(0))
    publish_invoices(settings, invoice("I1", A, 1000.0), invoice("I2", B, 50.0))
    opening = tmp_path / "opening.csv"
    opening.write_text(f"card,points,expires\n{IMPORTED},12.50,2099-12-31\n{IMPORTED},0.50,\n", encoding="utf-8")
    import_file(settings, opening)
    run(spark, settings)
    checkpoint = Path(LOYALTY_QUERY.checkpoint(settings))
    shutil.copytree(checkpoint, tmp_path / "copy")
    import_file(settings, opening)
    asked = [
        Reserve(append_time=0, command_id="r1", points=500),
        Capture(append_time=0, command_id="c1", redemption_id="r1"),
        Reserve(append_time=0, command_id="r2", points=100_000),
        Adjust(append_time=0, command_id="a1", points=300, reason="sorry", actor="desk"),
        Transfer(append_time=0, command_id="t1", points=400, counterparty=B),
    ]
    for each in asked:  # one by one, because the order within a millisecond is not defined
        send(settings, A, each)
    run(spark, settings)
    delete_newest_commit_with_records(LOYALTY_QUERY.checkpoint(settings))
    send(settings, A, *asked)
    run(spark, settings)  # the repeated batch, and the credit of the transfer
    run(spark, settings)

    decisions = latest(settings, topics.LOYALTY_DECISIONS)
    assert {"r1": "done", "c1": "done", "r2": "refused", "a1": "done", "t1": "done"}.items() <= {
        key: decision["Status"] for key, decision in decisions.items()
    }.items()
    assert "insufficient-points" == decisions["r2"]["Reason"]
    assert [("earned", "20.00"), ("reserved", "0.00"), ("redeemed", "-5.00"), ("refused", "0.00")] == [
        (kind, str(points)) for kind, points in entries(settings, A)[:4]
    ]
    assert [("earned", Decimal("1.00")), ("received", Decimal("4.00"))] == entries(settings, B)
    assert [("imported", Decimal("12.50")), ("imported", Decimal("0.50"))] == entries(settings, IMPORTED)
    balances = latest(settings, topics.LOYALTY_BALANCES)
    assert (Decimal("14.00"), 6) == (balances[A]["TotalLoyaltyPoints"], balances[A]["Sequence"])
    assert Decimal("5.00") == balances[B]["AvailableLoyaltyPoints"]
    assert len(effects(settings, topics.LOYALTY)) < len(read_all(settings, topics.LOYALTY)), "nothing was replayed"

    send(settings, A, Erase(append_time=0, command_id="e1"))
    run(spark, settings)
    assert latest(settings, topics.LOYALTY_BALANCES)[A] is None
    decisions = latest(settings, topics.LOYALTY_DECISIONS)
    assert (
        dict.fromkeys(("r1", "c1", "r2", "a1", "t1"), "erased").items()
        <= {key: decision["Status"] for key, decision in decisions.items() if decision}.items()
    )
    assert [] == [card for card, _ in accounts_of(spark, settings) if card == A]

    send(settings, B, Erase(append_time=0, command_id="e2"))
    time.sleep(0.01)  # wait for the next millisecond of the broker
    publish_invoices(settings, invoice("I3", B, 100.0))
    run(spark, settings)
    delete_newest_commit_with_records(LOYALTY_QUERY.checkpoint(settings))
    run(spark, settings)
    opened_anew = latest(settings, topics.LOYALTY_BALANCES)[B]
    assert (Decimal("2.00"), 1) == (opened_anew["TotalLoyaltyPoints"], opened_anew["Sequence"])
    assert ("erased", Decimal("-5.00")) in entries(settings, B)

    checkpoint.rename(tmp_path / "newest")
    (tmp_path / "copy").rename(checkpoint)
    with pytest.raises(CheckpointMismatchError, match=rf"{checkpoint} is older than .*-balances.*`loyalty rebuild`"):
        run(spark, settings)


def accounts_of(spark, settings):
    """Card or pseudonym and account of every account in Spark's state."""
    state = spark.read.format("statestore").option("stateVarName", SHARED).load(LOYALTY_QUERY.checkpoint(settings))
    rows = state.where(F.col("user_map_key.map") == ACCOUNTS).selectExpr("user_map_key.key", "user_map_value.value")
    found = [(*decode(bytes(row.key)), *decode(bytes(row.value))) for row in rows.collect()]
    return [(card, decode_account(account)) for card, account, _ in found]


@pytest.mark.usefixtures("topics_created")
def test_malformed_commands_become_dead_letters(spark, settings):
    """Each malformed command becomes a dead letter with its reason. The valid one is decided."""
    encode = encoder(topics.LOYALTY_COMMANDS, IDS)

    def changed(**changes):
        good = command_record(A, Reserve(append_time=0, command_id=f"bad-{len(bad)}", points=100))
        return encode(good | changes)

    lots = [{"Points": 2**62, "ExpiresTime": 0}, {"Points": 2**62, "ExpiresTime": 0}]
    received = {"Kind": "receive", "Counterparty": B}
    bad: list[tuple[str, bytes | None, bytes | None]] = []
    bad.append(("no value", A.encode(), None))
    bad.append(("not in the Confluent framing: no magic byte 0 and schema id", A.encode(), b"reserve"))
    bad.append(("unknown schema id 1162167621", A.encode(), b"\x00EEEE"))
    bad.append(("not an Avro LoyaltyCommand of its schema id", A.encode(), changed()[:-4]))
    no_text = changed(Actor="ABCD").replace(b"ABCD", b"\xff" * 4)
    bad.append(("not an Avro LoyaltyCommand of its schema id", A.encode(), no_text))
    bad.append(("CommandID is blank", A.encode(), changed(CommandID="\u00a0")))
    bad.append(("CommandID is too long", A.encode(), changed(CommandID="x" * 129)))
    bad.append(("Reason is too long", A.encode(), changed(Kind="transfer", Counterparty=B, Reason="x" * 900_000)))
    bad.append(("Actor is too long", A.encode(), changed(Actor="x" * 129)))
    bad.append(("RequestHash is too long", A.encode(), changed(RequestHash="x" * 129)))
    bad.append(("CustomerCardNo is blank", b"", changed(CustomerCardNo="")))
    bad.append(("the key is not the CustomerCardNo", B.encode(), changed()))
    bad.append(("the key is not the CustomerCardNo", None, changed()))
    kinds = (
        "reserve, capture, void, adjust, transfer, receive, import, block, unblock, "
        "replace, merge, absorb, forward, forget, redirect, erase"
    )
    bad.append((f"Kind is none of {kinds}", A.encode(), changed(Kind="gift")))
    bad.append(("Points are not above 0", A.encode(), changed(Points=Decimal("-1.00"))))
    bad.append(("Points are out of range", A.encode(), changed(Points=Decimal(10**11))))
    bad.append(("Points are 0", A.encode(), changed(Kind="adjust", Points=Decimal(0))))
    bad.append(("RedemptionID is blank", A.encode(), changed(Kind="capture", RedemptionID="\t")))
    bad.append(("Counterparty is blank", A.encode(), changed(Kind="transfer")))
    bad.append(("Lots do not make up the Points", A.encode(), changed(**received, Lots=[])))
    bad.append(("Lots do not make up the Points", A.encode(), changed(**received, Lots=lots)))
    publish(settings, topics.LOYALTY_COMMANDS, [(key, value) for _, key, value in bad])
    send(settings, A, Adjust(append_time=0, command_id="good", points=100))

    assert len(bad) == dead_letters_counted(spark, settings, LOYALTY_QUERY)
    letters = sorted(
        (headers_of(letter)["dead_letter_reason"].decode(), letter.key() or b"", letter.value() or b"")
        for letter in read_all(settings, topics.DEAD_LETTERS)
    )
    assert sorted((reason, key or b"", value or b"") for reason, key, value in bad) == letters
    assert {"good": "done"} == {k: d["Status"] for k, d in latest(settings, topics.LOYALTY_DECISIONS).items()}


@pytest.mark.usefixtures("topics_created")
def test_an_invoice_that_only_the_loyalty_query_has_skipped_can_be_replayed(spark, settings):
    """The loyalty query reads the invoice before it knows the schema id. The fan-out knows the id, and accepts it.

    The loyalty query crashes before it has committed the micro-batch. The replay skips the invoice and a command again.
    The next start fails after it has written the dead letter, and the one after it does not write it again.
    """
    encode = record_encoder("PosInvoice", 4711)
    known = encoder(topics.POS_INVOICES, IDS)(invoice("I2", A, 50.0))
    publish(settings, topics.POS_INVOICES, [(b"STR1", encode(invoice("I1", A, 1000.0))), (b"STR1", known)])
    command = record_encoder("LoyaltyCommand", 4712)(
        command_record(A, Adjust(append_time=0, command_id="a1", points=700))
    )
    publish(settings, topics.LOYALTY_COMMANDS, [(A.encode(), command)])
    run(spark, settings)
    assert Decimal("1.00") == latest(settings, topics.LOYALTY_BALANCES)[A]["TotalLoyaltyPoints"]
    delete_newest_commit_with_records(LOYALTY_QUERY.checkpoint(settings))

    failing = replace(LOYALTY_QUERY, build=build_without_new_ids)
    with pytest.raises(CheckpointMismatchError, match="lost"):
        failing.start(spark, LaterIds(), settings, available_now=True)
    for query in (FAN_OUT, LOYALTY_QUERY):
        query.start(spark, LaterIds(), settings, available_now=True).awaitTermination()

    # Both runs of the micro-batch refuse the command.
    reasons = sorted(headers_of(letter)["dead_letter_reason"] for letter in read_all(settings, topics.DEAD_LETTERS))
    assert [b"unknown schema id 4711", b"unknown schema id 4712", b"unknown schema id 4712"] == reasons
    earned = ("earned", Decimal("1.00"))
    assert [earned] == entries(settings, A)
    assert 2 == replay(settings, DeadLetters(settings), map(settings.name_of, LOYALTY_QUERY.sources), since=0)
    LOYALTY_QUERY.start(spark, LaterIds(), settings, available_now=True).awaitTermination()
    assert [("adjusted", Decimal("7.00")), earned, ("earned", Decimal("20.00"))] == sorted(entries(settings, A))

    # These ids are those of a Schema Registry that has lost its data. Each further invoice with id 4711 would become a
    # dead letter.
    with pytest.raises(CheckpointMismatchError, match=r"schema ids 4711 of .*pos-invoices are gone"):
        LOYALTY_QUERY.start(spark, IDS, settings, available_now=True)


def build_without_new_ids(context):
    """Build the loyalty query, but fail as with a lost version of the programme if it knows new ids."""
    if isinstance(context.ids, LaterIds):
        raise CheckpointMismatchError("lost")
    return LOYALTY_QUERY.build(context)


@pytest.mark.usefixtures("topics_created")
def test_timers_run_without_new_events(spark, settings):
    """Timers release points without new input. Repeated batches give the same bytes."""
    settings = settings.model_copy(update={"timer_interval": timedelta(seconds=1)})
    publish_programme("loyalty-factor: 0.02\npending: PT2S\n", settings, effective_time=1_000)
    publish_invoices(settings, invoice("I0", B, 1.0))
    run(spark, settings)  # the first batch, which the test never repeats
    query = LOYALTY_QUERY.start(spark, IDS, settings, available_now=False)
    try:
        publish_invoices(settings, invoice("I1", A, 1000.0))
        deadline = time.monotonic() + 300
        while ("released", Decimal(0)) not in entries(settings, A):
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, entries(settings, A)
            time.sleep(TOPIC_POLL_SECONDS)
    finally:
        query.stop()

    done = [("earned", Decimal("20.00")), ("released", Decimal(0))]
    assert done == entries(settings, A)
    assert Decimal("20.00") == latest(settings, topics.LOYALTY_BALANCES)[A]["AvailableLoyaltyPoints"]
    before = len(read_all(settings, topics.LOYALTY))
    delete_all_batches_but_the_first(LOYALTY_QUERY.checkpoint(settings))
    run(spark, settings)
    assert done == entries(settings, A)
    assert before < len(read_all(settings, topics.LOYALTY)), "no timer fired again, so nothing was proven"


@pytest.mark.usefixtures("topics_created")
@pytest.mark.timeout(1500)
def test_a_new_programme_version_needs_no_restart(settings, tmp_path):
    """The running process applies a new version between two batches and keeps its accounts."""
    settings = settings.model_copy(update={"programme_notice": timedelta(0)})
    publish_invoices(settings, invoice("I1", A, 1000.0))
    with (tmp_path / "pipeline.log").open("a", encoding="utf-8") as log:
        running = start_pipeline(settings, log, "--query", "loyalty", LOYALTY_LOG_FORMAT="json")
        try:
            wait_until(lambda: 1 == len(entries(settings, A)), running, log)
            version = publish_programme("loyalty-factor: 0.05\n", settings)
            wait_until(lambda: 2 == Path(log.name).read_text("utf-8").count('"event": "query started"'), running, log)
            assert version.effective_time < time.time() * 1000
            publish_invoices(settings, invoice("I2", A, 1000.0))
            wait_until(lambda: 2 == len(entries(settings, A)), running, log)
        finally:
            running.send_signal(signal.SIGTERM)
            assert 0 == running.wait(120)

    assert [("earned", Decimal("20.00")), ("earned", Decimal("50.00"))] == entries(settings, A)


@pytest.mark.usefixtures("topics_created")
def test_a_checkpoint_of_an_older_release_is_refused(spark, settings):
    """Accounts in an older format cannot continue. The error says what to do."""
    publish_invoices(settings, invoice("I1", A, 1000.0))
    send(settings, A, Erase(append_time=0, command_id="e1"))
    folder = Path(LOYALTY_QUERY.checkpoint(settings))
    folder.mkdir(parents=True)
    made_with = {"query": "loyalty", "source": settings.name_of(topics.POS_INVOICES), "shuffle_partitions": "2"}
    (folder / "retail-loyalty.json").write_text(json.dumps(made_with), encoding="utf-8")

    with pytest.raises(CheckpointMismatchError, match="loyalty rebuild"):
        run(spark, settings)


@pytest.mark.usefixtures("topics_created")
def test_a_new_checkpoint_continues_with_its_initial_accounts(spark, settings):
    """Initial accounts of a new checkpoint continue with their sequence numbers and from the given offsets.

    The account itself remembers I1, and the query remembers I3.
    """
    publish_programme("loyalty-factor: 0.02\npending: P1D\n", settings, effective_time=1_000)
    publish_invoices(settings, invoice("I1", A, 1000.0))
    run(spark, settings)
    kept = accounts_of(spark, settings)
    elsewhere = settings.model_copy(update={"checkpoint_dir": f"{settings.checkpoint_dir}-anew"})
    accounts = spark.createDataFrame(
        [(card, encode_account(account)) for card, account in kept], "CustomerCardNo string, account binary"
    )
    numbers = spark.createDataFrame([("#I3", datetime.now(UTC))], "identity string, timestamp timestamp")
    ends = {topic: next_offsets(settings, topic) for topic in LOYALTY_QUERY.sources}
    invoices = spark.createDataFrame([], "invoice string, owner string, waiting binary")

    seeded(Seed(accounts, numbers, ends, invoices)).start(spark, IDS, elsewhere, available_now=True).awaitTermination()
    timers = spark.read.format("statestore").option("readRegisteredTimers", True)  # noqa: FBT003
    assert 1 == timers.load(LOYALTY_QUERY.checkpoint(elsewhere)).count(), "nothing would release the points"
    publish_invoices(settings, invoice("I1", A, 1000.0), invoice("I2", A, 100.0), invoice("I3", A, 10.0))
    run(spark, elsewhere)

    balance = latest(settings, topics.LOYALTY_BALANCES)[A]
    assert (Decimal("22.00"), 2) == (balance["TotalLoyaltyPoints"], balance["Sequence"])
    with pytest.raises(CheckpointMismatchError, match="is not new"):
        seeded(Seed(accounts, numbers, ends, invoices)).start(spark, IDS, elsewhere, available_now=True)


def next_offsets(settings, topic):
    offsets = dict.fromkeys(range(settings.partitions_of(topic)), 0)
    for message in read_all(settings, topic):
        offsets[message.partition()] = message.offset() + 1
    return offsets
