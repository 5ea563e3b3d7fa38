"""The queries of the pipeline on a real broker: every output takes effect exactly once, despite failures."""

import contextlib
import json
import os
import re
import signal
from collections import defaultdict
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pandas as pd
import psutil
import pyarrow.dataset
import pyarrow.parquet
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic
from prometheus_client import REGISTRY

from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.queries.export import EXPORT
from pipelines.queries.fan_out import FAN_OUT
from pipelines.queries.loyalty import LOYALTY_QUERY
from pipelines.queries.sales import SALES
from pipelines.runtime import socket_files
from pipelines.runtime.query_metrics import report
from schemas import topics
from services.domain.formats import LAST_TIME
from services.domain.validation import LARGEST_INVOICE
from services.errors import SettingsError
from services.messaging.administration import wait_for_leaders
from services.messaging.avro import encoder
from services.messaging.clients import admin, producer
from services.settings import Settings
from tests.support.builders import HOME_DELIVERY, IDS, invoice
from tests.support.kafka import (
    headers_of,
    highest_balances_of,
    publish,
    publish_invoices,
    read_all,
    records_of,
    unique_records_of,
)
from tests.support.processes import (
    dead_letters_counted,
    delete_newest_commit,
    run_to_the_end,
    start_as_release_0_1,
    start_pipeline,
    wait_until,
)
from tests.support.scan import files_with
from tests.support.waiting import REPORT_POLL_SECONDS

SAMPLE = Path(__file__).parents[1] / "data" / "pos-invoices"


def till_invoice(number, card, amount, **changes):
    """Time, store, delivery and the number of line items follow from the invoice's number."""
    items = [{"ItemCode": str(line), "ItemPrice": amount, "ItemQty": 1} for line in range(1 + number % 3)]
    return {
        **invoice(f"I{number}", card, amount, **HOME_DELIVERY),
        "CreatedTime": 1_595_688_900_000 + number * 600_000,
        "StoreID": f"STR{number % 5}",
        "DeliveryType": "HOME-DELIVERY" if number % 2 else "TAKEAWAY",
        "InvoiceLineItems": items,
        **changes,
    }


def invoices(first, count):
    # A card is long enough that compressed bytes do not contain it by chance.
    return [till_invoice(number, f"CUSTOMER-{number % 7}", number + 0.25) for number in range(first, first + count)]


def points(batch):
    """Card to points by the rule: 2 % of each amount, rounded half up, each invoice once."""
    total = defaultdict(Decimal)
    for each in {each["InvoiceNumber"]: each for each in batch}.values():
        if each["CustomerType"] == "PRIME":
            earned = (Decimal(str(each["TotalAmount"])) * 2).quantize(Decimal(1), ROUND_HALF_UP) / 100
            total[each["CustomerCardNo"]] += earned
    return dict(total)


def served(settings):
    return {card: balance["TotalLoyaltyPoints"] for card, balance in highest_balances_of(settings).items()}


def assert_running_totals(settings):
    """The sequence numbers of each customer are 1, 2, 3 … Each total is the previous total plus the earned points."""
    by_card = defaultdict(dict)
    for record in unique_records_of(settings, topics.LOYALTY).values():
        by_card[record["CustomerCardNo"]][record["Sequence"]] = record
    for notifications in by_card.values():
        total = Decimal(0)
        for sequence in range(1, len(notifications) + 1):
            total += notifications[sequence]["EarnedLoyaltyPoints"]
            assert total == notifications[sequence]["TotalLoyaltyPoints"]
    return by_card


def rows(folder):
    """The rows that a Parquet reader sees. Retries when Spark removes a temporary folder during the listing."""
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError):
            return _rows(folder)
    return _rows(folder)


def _rows(folder):
    return pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()


@pytest.mark.usefixtures("topics_created")
def test_every_invoice_reaches_its_outputs_exactly_once(spark, settings):
    """All outputs are exact after late duplicates, dead letters and a repeated newest batch of every query."""
    first, second = invoices(1, 60), invoices(61, 40)
    # Tills without a clock, with a wrong clock, and with a clock in seconds.
    first[0]["CreatedTime"], first[1]["CreatedTime"], first[2]["CreatedTime"] = None, LAST_TIME + 1, 1_595_688_900
    publish_invoices(settings, *(first + first[:3]))
    publish(settings, topics.POS_INVOICES, [(b"STR1", b"nonsense"), (None, None)])
    run_to_the_end(spark, settings, FAN_OUT, LOYALTY_QUERY)
    run_to_the_end(spark, settings, EXPORT)
    for query in (FAN_OUT, LOYALTY_QUERY, EXPORT):
        delete_newest_commit(query.checkpoint(settings))
    publish_invoices(settings, *(second + first[10:20] + second[:5]))
    run_to_the_end(spark, settings, FAN_OUT, LOYALTY_QUERY)
    run_to_the_end(spark, settings, EXPORT)

    everything = first + second
    assert points(everything) == served(settings)
    assert 100 == sum(map(len, assert_running_totals(settings).values()))
    shipped = unique_records_of(settings, topics.SHIPMENT)
    assert {each["InvoiceNumber"] for each in everything if each["DeliveryType"] == "HOME-DELIVERY"} == set(shipped)
    lines = {
        f"{each['InvoiceNumber']}#{line + 1}" for each in everything for line in range(len(each["InvoiceLineItems"]))
    }
    assert lines == set(unique_records_of(settings, topics.HADOOP))
    assert len(lines) < len(read_all(settings, topics.HADOOP)), "no batch was replayed, so nothing was proven"
    found = rows(settings.export_dir)
    assert sorted(lines) == sorted(f"{row['InvoiceNumber']}#{int(row['ItemCode']) + 1}" for row in found)
    assert {"date", "batch", "InvoiceNumber"} <= set(found[0])
    cards = {each["CustomerCardNo"] for each in everything}
    assert [] == files_with(Path(settings.export_dir), *cards), "the export knows no customer"
    planted = pyarrow.table({"note": [f"call {min(cards)}"]})
    pyarrow.parquet.write_table(planted, Path(settings.checkpoint_dir, "planted.parquet"), compression="zstd")
    assert "planted.parquet" in files_with(Path(settings.checkpoint_dir), *cards)
    history = pd.read_parquet(settings.export_dir)
    dates = {(row.InvoiceNumber, row.DateSource, str(row.date)) for row in history.itertuples()}
    today = max(map(str, history["date"]))
    assert {("I1", "broker", today), ("I2", "broker", today), ("I3", "till", "2020-07-25")} <= dates
    assert 98 == sum(source == "till" for _, source, _ in dates)
    assert {1_595_688_900_000} == set(history.loc[history["InvoiceNumber"] == "I3", "CreatedTime"])
    assert {b"nonsense", None} == {message.value() for message in read_all(settings, topics.DEAD_LETTERS)}


@pytest.mark.usefixtures("topics_created")
@pytest.mark.parametrize("release", ["0.1", "this"])
def test_a_used_invoice_number_has_no_second_effect(spark, settings, release):
    """A second invoice with a used number earns and ships nothing, even with another card, amount or type.

    A checkpoint of release 0.1 continues with Spark's own operator.
    """
    if release == "0.1":
        for query in (FAN_OUT, LOYALTY_QUERY):
            start_as_release_0_1(query, settings)
    publish_invoices(settings, till_invoice(1, "A", 100.0), till_invoice(3, "B", 50.0, CustomerType="NONPRIME"))
    run_to_the_end(spark, settings, FAN_OUT, LOYALTY_QUERY)
    publish_invoices(settings, till_invoice(1, "C", 900.0), till_invoice(3, "B", 50.0), till_invoice(5, "B", 10.0))
    run_to_the_end(spark, settings, FAN_OUT, LOYALTY_QUERY)

    assert {"A": Decimal("2.00"), "B": Decimal("0.20")} == served(settings)
    assert {"I1", "I3", "I5"} == set(unique_records_of(settings, topics.SHIPMENT))
    operators = spark.read.format("state-metadata").load(FAN_OUT.checkpoint(settings)).select("operatorName").collect()
    assert {"dedupeWithinWatermark" if release == "0.1" else "transformWithStateInPandasExec"} == {
        row.operatorName for row in operators
    }


@pytest.mark.usefixtures("topics_created")
def test_recorded_invoices_give_the_known_totals(spark, settings):
    """1,000 recorded invoices give the totals that were computed independently (tests/data/pos-invoices/README.md)."""
    texts = [line for file in sorted(SAMPLE.glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    publish(settings, topics.POS_INVOICES, ((json.loads(text)["StoreID"].encode(), text) for text in texts))

    run_to_the_end(spark, settings, FAN_OUT, LOYALTY_QUERY)

    recorded = [json.loads(text) for text in texts]
    assert (1000, 998) == (len(recorded), len({each["InvoiceNumber"] for each in recorded}))
    assert points(recorded) == served(settings)
    assert Decimal("43509.58") == sum(served(settings).values())
    assert 430 - 1 == len(unique_records_of(settings, topics.LOYALTY))
    assert 575 == len(unique_records_of(settings, topics.SHIPMENT))
    assert 2 == 1000 - len({key.partition("#")[0] for key in unique_records_of(settings, topics.HADOOP)})


@pytest.mark.usefixtures("topics_created")
def test_unreadable_hadoop_records_become_dead_letters_of_the_export(spark, settings):
    """The export continues past foreign bytes on the hadoop topic and past absurd times of a till."""
    publish_invoices(
        settings, *invoices(1, 3), *(till_invoice(n, "A", 1.0, CreatedTime=n) for n in (2**63 - 1, -(2**63)))
    )
    run_to_the_end(spark, settings, FAN_OUT)
    publish(settings, topics.HADOOP, [(b"k", b"not a record")])
    client = producer(settings, "test")  # a record of another producer, with other headers
    foreign = encoder(topics.HADOOP, IDS)({"InvoiceNumber": "F1", "ItemCode": "0"})
    client.produce(settings.name_of(topics.HADOOP), key=b"k", value=foreign, headers={"x": b"1"})
    assert 0 == client.flush(60)

    assert 1 == dead_letters_counted(spark, settings, EXPORT)
    ours = hadoop_records_without(settings, {b"not a record", foreign})
    assert len(ours) + 1 == len(rows(settings.export_dir))
    (letter,) = read_all(settings, topics.DEAD_LETTERS)
    assert settings.name_of(topics.HADOOP).encode() == headers_of(letter)["dead_letter_topic"]
    assert b"not a record" == letter.value()


def hadoop_records_without(settings, values):
    return {headers_of(each)["ce_id"] for each in read_all(settings, topics.HADOOP) if each.value() not in values}


@pytest.mark.usefixtures("topics_created")
def test_the_largest_possible_record_becomes_a_dead_letter(spark, settings):
    """1 MiB of garbage, and 4 MiB that compress well, become dead letters. The invoice passes.

    Memory may not hold many values of more than 4 MiB. Their dead letters have no value. Headers of 18 MiB do not fit
    into the topic: lz4 does not find their repetitions, and zstd does.
    """
    huge, huger, too_large = os.urandom(2**20 - 2_000), b"x" * LARGEST_INVOICE, b"{" + b" " * LARGEST_INVOICE
    client = producer(settings, "test", **{"message.max.bytes": 32 * 2**20})
    for value in (huge, huger, too_large):
        client.produce(settings.name_of(topics.POS_INVOICES), key=b"STR1", value=value)
    assert 0 == client.flush(60)
    client = producer(settings, "test", **{"message.max.bytes": 32 * 2**20, "compression.type": "zstd"})
    block = os.urandom(300 * 2**10)
    client.produce(settings.name_of(topics.POS_INVOICES), key=b"STR1", value=b"{}", headers=[("x", block)] * 60)
    assert 0 == client.flush(60)
    publish_invoices(settings, *invoices(1, 1))

    assert 4 == dead_letters_counted(spark, settings, FAN_OUT)
    letters = read_all(settings, topics.DEAD_LETTERS)
    assert {huge, huger, None, b"{}"} == {letter.value() for letter in letters}
    assert {"I1"} == set(unique_records_of(settings, topics.SHIPMENT))


@pytest.mark.usefixtures("topics_created")
def test_a_checkpoint_keeps_its_shuffle_partitions_if_they_are_not_set(spark, settings):
    """The default number of an earlier release was larger, and its checkpoints continue. Another number is refused."""
    publish_invoices(settings, *invoices(1, 5))
    run_to_the_end(spark, settings.model_copy(update={"shuffle_partitions": 3}), FAN_OUT)
    with pytest.raises(CheckpointMismatchError, match="shuffle_partitions: '3' before, '2' now"):
        run_to_the_end(spark, settings, FAN_OUT)
    publish_invoices(settings, *invoices(1, 10))
    unset = settings.model_dump(exclude={"shuffle_partitions"}, exclude_unset=True)
    run_to_the_end(spark, Settings(**unset), FAN_OUT)

    operators = spark.read.format("state-metadata").load(FAN_OUT.checkpoint(settings)).select("numPartitions").collect()
    assert {3} == {row.numPartitions for row in operators}
    assert 10 == len({record["InvoiceNumber"] for record in records_of(settings, topics.HADOOP)})


def test_a_topic_with_the_tills_time_is_refused(spark, settings):
    """With timestamps of the tills, one clock in 2099 would make all other records late."""
    client = admin(settings)
    name = settings.name_of(topics.POS_INVOICES)
    for future in client.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)]).values():
        future.result()
    wait_for_leaders(client, [TopicPartition(name, 0)])

    with pytest.raises(SettingsError, match="LogAppendTime"):
        run_to_the_end(spark, settings, FAN_OUT)


@pytest.mark.usefixtures("topics_created")
def test_a_horizon_shorter_than_the_retention_is_refused(spark, settings):
    """The query would drop records older than the horizon as late, so retention must be shorter."""
    from datetime import timedelta

    with pytest.raises(SettingsError, match="for P8D, but LOYALTY_REPEAT_HORIZON is P7D"):
        run_to_the_end(spark, settings.model_copy(update={"repeat_horizon": timedelta(days=7)}), FAN_OUT)


@pytest.mark.usefixtures("topics_created")
def test_full_micro_batches_do_not_wait_for_the_interval(spark, settings):
    """A query reads a backlog in full batches without waiting. Only the rest waits for the interval.

    The metric counts its repeats.
    """
    publish_invoices(settings, *invoices(1, 120), *invoices(1, 10))
    patient = settings.model_copy(update={"sales_interval": timedelta(hours=1), "max_offsets_per_trigger": 50})
    query = SALES.start(spark, IDS, patient, available_now=False)
    try:
        query.processAllAvailable()
        reports = [progress for progress in query.recentProgress if progress["numInputRows"]]
    finally:
        query.stop()
    read = [progress["numInputRows"] for progress in reports]

    assert 2 == len(read)
    assert 2 * 50 - 3 * 2 < sum(read) <= 2 * 50, "a partition's part of a full micro-batch is rounded down"
    query = SALES.start(spark, IDS, patient, available_now=True)
    query.awaitTermination()
    assert 120 == sum(record["Count"] for record in newest_windows(settings).values())
    before = counted("repeats_dropped", "sales")
    for progress in [*reports, *query.recentProgress]:
        report(json.loads(progress.json))
    assert 10 == counted("repeats_dropped", "sales") - before


@pytest.mark.usefixtures("topics_created")
def test_a_micro_batch_needs_no_code_that_was_not_compiled_before(spark, settings):
    """Spark keeps the generated code of all queries. So sooner or later a round of micro-batches compiles nothing."""
    metrics = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics
    compiled = []
    with contextlib.ExitStack() as running:
        queries = [query.start(spark, IDS, settings, available_now=False) for query in (FAN_OUT, LOYALTY_QUERY)]
        for query in queries:
            running.callback(query.stop)
        for number in range(12):
            before = metrics.METRIC_COMPILATION_TIME().getCount()
            publish_invoices(settings, *invoices(10 * number + 1, 10))
            for query in queries:
                query.processAllAvailable()
            compiled.append(metrics.METRIC_COMPILATION_TIME().getCount() - before)
            if not compiled[-1]:
                break

    assert not compiled[-1], f"generated classes compiled in each round: {compiled}"


@pytest.mark.usefixtures("topics_created")
def test_the_tasks_of_a_stateful_query_leave_nothing_in_the_driver(spark, settings):
    """Spark 4.2.0 left a socket open after each task (SPARK-58932), until it could open no file. Spark 4.2.1 makes Java
    remember the path of each socket file, until the driver makes it forget them.
    """
    jvm = psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid())
    files = spark._jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    files.setAccessible(True)
    sockets = []
    query = LOYALTY_QUERY.start(spark, IDS, settings, available_now=False)
    try:
        for number in range(6):
            publish_invoices(settings, *invoices(10 * number + 1, 10))
            query.processAllAvailable()
            sockets.append(len(jvm.net_connections("unix")))
            if number == 4:
                remembered = files.get(None).size()
                socket_files.forget(spark._jvm)
    finally:
        query.stop()

    assert sockets[-1] <= max(sockets[:3]), f"open sockets after each round of micro-batches: {sockets}"
    assert remembered >= 4 * 5, "at least two tasks of two operators in each round"
    assert files.get(None).size() <= remembered / 2


def counted(what, query):
    return REGISTRY.get_sample_value(f"loyalty_query_{what}_total", {"query": query}) or 0


def newest_windows(settings):
    """The last record of each window of each store."""
    windows = {}
    for record in unique_records_of(settings, topics.STORE_SALES).values():
        window = (record["StoreID"], record["WindowStart"])
        windows[window] = max(windows.get(window, record), record, key=lambda each: each["Sequence"])
    return windows


@pytest.mark.usefixtures("topics_created")
def test_sales_by_minute_count_each_invoice_once(spark, settings):
    """The last record of each window counts each invoice once and subtracts returns. The sequence number only grows."""
    first, second = invoices(1, 20), invoices(21, 10)
    positive_return = {**first[0], "InvoiceNumber": "back", "OriginalInvoiceNumber": first[0]["InvoiceNumber"]}
    publish_invoices(settings, *(first + first[:5]), positive_return)
    run_to_the_end(spark, settings, SALES)
    delete_newest_commit(SALES.checkpoint(settings))
    publish_invoices(settings, *(second + first[:5]))
    run_to_the_end(spark, settings, SALES)

    windows = newest_windows(settings)
    amounts = {
        store: [Decimal(str(e["TotalAmount"])) for e in first + second if e["StoreID"] == store] for store, _ in windows
    }
    amounts[positive_return["StoreID"]].append(-Decimal(str(positive_return["TotalAmount"])))
    for store, sold in amounts.items():
        of_store = [record for (name, _), record in windows.items() if name == store]
        assert len(sold) == sum(record["Count"] for record in of_store)
        assert sum(sold) == sum(record["Sum"] for record in of_store)
        assert (min(sold), max(sold)) == (min(r["Minimum"] for r in of_store), max(r["Maximum"] for r in of_store))
    assert 5 == len(amounts)


@pytest.mark.usefixtures("topics_created")
@pytest.mark.timeout(1500)
def test_totals_are_right_after_kill_9_of_the_pipeline(settings, tmp_path):
    """After SIGKILL in the middle of a run, a start on the same checkpoints loses and duplicates nothing."""
    batch = invoices(1, 450)
    publish_invoices(settings, *(batch + batch[100:130]))
    lines = sum(len(each["InvoiceLineItems"]) for each in batch)
    with (tmp_path / "pipeline.log").open("a", encoding="utf-8") as log:
        doomed = start_pipeline(settings, log, LOYALTY_MAX_OFFSETS_PER_TRIGGER="90")
        wait_until(lambda: 0 < len(records_of(settings, topics.LOYALTY)), doomed, log, REPORT_POLL_SECONDS)
        os.killpg(doomed.pid, signal.SIGKILL)
        doomed.wait()
        counted = len(unique_records_of(settings, topics.LOYALTY))
        assert counted < 450, "it was killed too late to prove anything"

        of_doomed = len(Path(log.name).read_text(encoding="utf-8"))
        survivor = start_pipeline(settings, log, LOYALTY_MAX_OFFSETS_PER_TRIGGER="90")
        try:
            wait_until(lambda: len(unique_records_of(settings, topics.LOYALTY)) >= 450, survivor, log)
            wait_until(lambda: len(unique_records_of(settings, topics.HADOOP)) >= lines, survivor, log)
            wait_until(lambda: len(rows(settings.export_dir)) >= lines, survivor, log)
            wait_until(lambda: len(rows(settings.archive_dir)) >= 450, survivor, log)
        finally:
            survivor.send_signal(signal.SIGTERM)
            assert 0 == survivor.wait(120)
        printed = Path(log.name).read_text(encoding="utf-8")[of_doomed:]

    # Nothing was wrong, so the log has no traceback. The only warning is that a stop can interrupt Spark's maintenance.
    expected = r"[0-9T:.-]+Z (\[info |WARN StateStore: Error doing maintenance on provider: .* Could not unload )"
    assert [] == [line for line in printed.splitlines() if not re.match(expected, line)]
    assert points(batch) == served(settings)
    assert 450 == sum(map(len, assert_running_totals(settings).values()))
    shipped = unique_records_of(settings, topics.SHIPMENT)
    assert {each["InvoiceNumber"] for each in batch if each["DeliveryType"] == "HOME-DELIVERY"} == set(shipped)
    assert lines == len(unique_records_of(settings, topics.HADOOP)) == len(rows(settings.export_dir))
    assert 450 == len({row["event"] for row in rows(settings.archive_dir)}) == len(rows(settings.archive_dir))
