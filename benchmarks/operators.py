"""The Python operators for keyed state against each other, on the same purchases, with many customers and with few.

Run: ``make bench-operators``. Every operator decides with the domain's own accounts, keeps the same bytes as state and
gives the same rows; the first micro-batch of each run is warm-up; runs alternate, so that whatever else the machine
does hits all alike.
"""

import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from pipelines.accounts.events import EVENT_TYPE
from pipelines.accounts.operator import process_events
from pipelines.accounts.records import RECORD_TYPE, rows_of, writer_ids
from pipelines.runtime.session import spark_session
from services import codecs
from services.domain.account.processor import Outcome, process
from services.domain.programme import Programmes
from services.messaging.avro import record_encoder
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings

ROWS_PER_BATCH = 4_000
BATCHES = 4
RUNS = 3
CUSTOMERS = {"many customers": 20_000, "few customers": 50}
PROGRAMMES = Programmes()
IDS = FolderSchemaIds()
WRITER_IDS = writer_ids(IDS)

_STATE_TYPE = T.StructType([T.StructField("account", T.BinaryType())])


def in_buckets(events: DataFrame) -> DataFrame:
    """What the loyalty query does: ``transformWithState`` on buckets of customers."""
    return process_events(events, PROGRAMMES, IDS, Settings(), None)


def one_by_one(events: DataFrame) -> DataFrame:
    """``transformWithState`` with a group a customer."""
    return events.groupBy("CustomerCardNo").transformWithState(
        statefulProcessor=OneByOne(), outputStructType=RECORD_TYPE, outputMode="Append", timeMode="ProcessingTime"
    )


class OneByOne(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("account", _STATE_TYPE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        state = self._state.get()
        outcome = _decide(key[0], state[0] if state else None, ((row.append_time, row.event) for row in rows))
        self._state.update((codecs.dump(outcome.account),))
        yield from rows_of(key[0], outcome, WRITER_IDS)

    def close(self) -> None:
        """Nothing is held open."""


def state_with_rows(events: DataFrame) -> DataFrame:
    """``applyInPandasWithState``, a group a customer: state and rows in bulk, together."""

    def count(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        rows = ((int(row.append_time), row.event) for frame in frames for row in frame.itertuples())
        outcome = _decide(key[0], state.get[0] if state.exists else None, rows)
        state.update((codecs.dump(outcome.account),))
        records = [row.asDict() for row in rows_of(key[0], outcome, WRITER_IDS)]
        yield pd.DataFrame(records, columns=RECORD_TYPE.names)

    return events.groupBy("CustomerCardNo").applyInPandasWithState(
        count, RECORD_TYPE, _STATE_TYPE, "append", GroupStateTimeout.NoTimeout
    )


def _decide(card: str, state: bytes | None, rows: Iterator[tuple[int, bytes]]) -> Outcome:
    account = codecs.load(bytes(state)) if state else None
    return process(account, [codecs.event_of(time, bytes(event)) for time, event in rows], PROGRAMMES, card)


OPERATORS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "transformWithState (buckets)": in_buckets,
    "transformWithState (customers)": one_by_one,
    "applyInPandasWithState": state_with_rows,
}


def main() -> None:
    spark = spark_session(Settings())
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for run in range(RUNS):
            for load, customers in CUSTOMERS.items():
                source = _write_events(spark, Path(directory, f"{run}-{customers}"), customers, seed=run)
                for name, operator in OPERATORS.items():
                    rate = _rows_per_second(spark, operator, source, Path(directory, f"{name}-{run}-{customers}"))
                    rates.setdefault((name, load), []).append(rate)
                    print(f"run {run + 1} {load:15} {name:30} {rate:8.0f} rows/s", flush=True)
    report = [
        {"operator": name, "load": load, "rows_per_second": round(statistics.median(found), 1), "runs": found}
        for (name, load), found in rates.items()
    ]
    Path("var/reports").mkdir(parents=True, exist_ok=True)
    Path("var/reports/operators.json").write_text(json.dumps(report, indent=2), encoding="utf-8")


def _write_events(spark: SparkSession, directory: Path, customers: int, seed: int) -> Path:
    dice, encode = random.Random(seed), record_encoder("Purchase", IDS.id_of("Purchase"))
    for batch in range(BATCHES):
        rows = []
        for number in range(ROWS_PER_BATCH):
            purchase = {"InvoiceNumber": f"{seed}-{batch}-{number}", "StoreID": "STR1", "CustomerType": "PRIME"}
            event = encode(purchase | {"TotalAmount": dice.randrange(100_000) / 100, "InvoiceLineItems": []})
            rows.append((f"{dice.randrange(customers):010}", batch, event))
        spark.createDataFrame(rows, EVENT_TYPE).coalesce(1).write.parquet(str(directory / str(batch)))
    return directory


def _rows_per_second(
    spark: SparkSession, operator: Callable[[DataFrame], DataFrame], source: Path, checkpoint: Path
) -> float:
    """Rows a second over all micro-batches but the first."""
    events = spark.readStream.schema(EVENT_TYPE).option("maxFilesPerTrigger", 1).parquet(f"{source}/*")
    writer = operator(events).writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress.numInputRows][1:]
    seconds = sum(progress.batchDuration for progress in batches) / 1000
    return sum(progress.numInputRows for progress in batches) / seconds


if __name__ == "__main__":
    main()
