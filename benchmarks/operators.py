"""The Python operators for keyed state against each other, on the same purchases, with many customers and with few.

Run: ``make bench-operators``. Every operator counts with the domain's own Account and keeps the same bytes as state;
the first micro-batch of each run is warm-up; runs alternate, so that whatever else the machine does hits all alike.
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

from pipelines.loyalty import NOTIFICATION_TYPE, notification_rows, running_totals
from pipelines.session import spark_session
from services import account_state
from services.domain.account import Account, Notification, Programme, Purchase
from services.settings import Settings

ROWS_PER_BATCH = 4_000
BATCHES = 4
RUNS = 3
CUSTOMERS = {"many customers": 20_000, "few customers": 50}
PROGRAMME = Programme()
PURCHASE_TYPE = "CustomerCardNo string, append_time long, invoice_number string, total_amount double"

_STATE_TYPE = T.StructType([T.StructField("account", T.BinaryType())])


def rows_in_pandas(purchases: DataFrame) -> DataFrame:
    """``transformWithStateInPandas``: state call by call, rows in bulk."""
    return purchases.groupBy("CustomerCardNo").transformWithStateInPandas(
        statefulProcessor=PandasAccounts(), outputStructType=NOTIFICATION_TYPE, outputMode="Append", timeMode="None"
    )


class PandasAccounts(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("account", _STATE_TYPE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        state = self._state.get()
        account = account_state.load(bytes(state[0])) if state else Account()
        counted, notifications = account.count(_purchases(rows), PROGRAMME)
        self._state.update((account_state.dump(counted),))
        yield _frame(key[0], notifications)

    def close(self) -> None:
        """Nothing is held open."""


def state_with_rows(purchases: DataFrame) -> DataFrame:
    """``applyInPandasWithState``: state and rows in bulk, together."""

    def count(key: Any, rows: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        account = account_state.load(bytes(state.get[0])) if state.exists else Account()
        counted, notifications = account.count(_purchases(rows), PROGRAMME)
        state.update((account_state.dump(counted),))
        yield _frame(key[0], notifications)

    return purchases.groupBy("CustomerCardNo").applyInPandasWithState(
        count, NOTIFICATION_TYPE, _STATE_TYPE, "append", GroupStateTimeout.NoTimeout
    )


def _purchases(rows: Iterator[pd.DataFrame]) -> Iterator[Purchase]:
    for frame in rows:
        columns = (frame["append_time"], frame["invoice_number"], frame["total_amount"])
        yield from (Purchase(*values) for values in zip(*(column.tolist() for column in columns), strict=True))


def _frame(card: str, notifications: list[Notification]) -> pd.DataFrame:
    return pd.DataFrame(
        [row.asDict() for row in notification_rows(card, notifications)], columns=NOTIFICATION_TYPE.names
    )


OPERATORS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "transformWithState (rows)": lambda purchases: running_totals(purchases, Settings()),
    "transformWithState (pandas)": rows_in_pandas,
    "applyInPandasWithState": state_with_rows,
}


def main() -> None:
    spark = spark_session(Settings())
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for run in range(RUNS):
            for load, customers in CUSTOMERS.items():
                source = _write_purchases(spark, Path(directory, f"{run}-{customers}"), customers, seed=run)
                for name, operator in OPERATORS.items():
                    rate = _rows_per_second(spark, operator, source, Path(directory, f"{name}-{run}-{customers}"))
                    rates.setdefault((name, load), []).append(rate)
                    print(f"run {run + 1} {load:15} {name:28} {rate:8.0f} rows/s", flush=True)
    report = [
        {"operator": name, "load": load, "rows_per_second": round(statistics.median(found), 1), "runs": found}
        for (name, load), found in rates.items()
    ]
    Path("var/reports").mkdir(parents=True, exist_ok=True)
    Path("var/reports/operators.json").write_text(json.dumps(report, indent=2), encoding="utf-8")


def _write_purchases(spark: SparkSession, directory: Path, customers: int, seed: int) -> Path:
    dice = random.Random(seed)
    for batch in range(BATCHES):
        rows = [
            (f"{dice.randrange(customers):010}", batch, f"{seed}-{batch}-{number}", dice.randrange(100_000) / 100)
            for number in range(ROWS_PER_BATCH)
        ]
        frame = spark.createDataFrame(
            rows, "CustomerCardNo string, append_time long, invoice_number string, total_amount double"
        )
        frame.coalesce(1).write.parquet(str(directory / str(batch)))
    return directory


def _rows_per_second(
    spark: SparkSession, operator: Callable[[DataFrame], DataFrame], source: Path, checkpoint: Path
) -> float:
    """Rows a second over all micro-batches but the first."""
    purchases = spark.readStream.schema(PURCHASE_TYPE).option("maxFilesPerTrigger", 1).parquet(f"{source}/*")
    writer = operator(purchases).writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress.numInputRows][1:]
    seconds = sum(progress.batchDuration for progress in batches) / 1000
    return sum(progress.numInputRows for progress in batches) / seconds


if __name__ == "__main__":
    main()
