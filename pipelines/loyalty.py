"""The loyalty query: PRIME invoices, repartitioned by customer, give notifications and the changelog of balances.

Invoices arrive keyed by store and one customer shops in many, so the running total needs the shuffle to
CustomerCardNo. The rules are the domain's; the operator only carries state in and out.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from pipelines import wire
from pipelines.repeats import first_of_each, invoice_identity
from schemas.topics import LOYALTY, LOYALTY_BALANCES, Topic
from services import account_state
from services.domain.account import Account, Notification, Programme, Purchase
from services.domain.invoice import PRIME
from services.domain.points import to_points
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings

_STATE_TYPE = T.StructType([T.StructField("account", T.BinaryType())])

_POINTS = T.DecimalType(18, 2)
NOTIFICATION_TYPE = T.StructType(
    [
        T.StructField("InvoiceNumber", T.StringType()),
        T.StructField("CustomerCardNo", T.StringType()),
        T.StructField("TotalAmount", T.DoubleType()),
        T.StructField("EarnedLoyaltyPoints", _POINTS),
        T.StructField("TotalLoyaltyPoints", _POINTS),
        T.StructField("Sequence", T.LongType()),
        T.StructField("UpdatedTime", T.LongType()),
        T.StructField("is_latest", T.BooleanType()),
    ]
)
"""A Notification, and whether it is the customer's last of this batch: the one whose total becomes the balance."""


def purchases(invoices: DataFrame, settings: Settings) -> DataFrame:
    """Checked invoices in; of the valid PRIME ones, each number once, what an account needs to know."""
    earns = F.col("reason").isNull() & (F.upper("invoice.CustomerType") == PRIME)
    purchase = F.struct(
        F.col("invoice.CustomerCardNo").alias("CustomerCardNo"),
        F.unix_millis("timestamp").alias("append_time"),
        F.col("invoice.InvoiceNumber").alias("invoice_number"),
        F.col("invoice.TotalAmount").alias("total_amount"),
    )
    # What earns nothing goes along, as its number counts too. Nor would a filter do: the optimizer would push it below
    # the decoding, and decode each invoice anew for every field that the filter looks at.
    rows = invoices.select(
        "timestamp", invoice_identity().alias("identity"), F.when(earns, F.array(purchase)).alias("purchases")
    )
    once = first_of_each(rows, settings)
    return once.select(F.explode("purchases").alias("purchase")).select("purchase.*")


class CustomerAccounts(StatefulProcessor):
    """Keeps one account a customer: one read and one write of state a customer and batch."""

    def __init__(self, programme: Programme) -> None:
        self._programme = programme

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("account", _STATE_TYPE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        state = self._state.get()
        account = account_state.load(bytes(state[0])) if state else Account()
        new_purchases = (Purchase(row.append_time, row.invoice_number, row.total_amount) for row in rows)
        counted, notifications = account.count(new_purchases, self._programme)
        self._state.update((account_state.dump(counted),))
        yield from notification_rows(key[0], notifications)

    def close(self) -> None:
        """Nothing is held open."""


def notification_rows(card: str, notifications: list[Notification]) -> Iterator[Row]:
    """The notifications of one customer and batch as rows of NOTIFICATION_TYPE."""
    for notification in notifications:
        yield Row(
            InvoiceNumber=notification.purchase.invoice_number,
            CustomerCardNo=card,
            TotalAmount=notification.purchase.total_amount,
            EarnedLoyaltyPoints=to_points(notification.earned),
            TotalLoyaltyPoints=to_points(notification.total),
            Sequence=notification.sequence,
            UpdatedTime=notification.purchase.append_time,
            is_latest=notification is notifications[-1],
        )


def running_totals(purchases_of_batch: DataFrame, settings: Settings) -> DataFrame:
    """Purchases in; notifications out, rows of NOTIFICATION_TYPE."""
    programme = Programme(settings.loyalty_factor)
    return purchases_of_batch.groupBy("CustomerCardNo").transformWithState(
        statefulProcessor=CustomerAccounts(programme),
        outputStructType=NOTIFICATION_TYPE,
        outputMode="Append",
        timeMode="None",
    )


def notifications_and_balances(notifications: DataFrame, ids: SchemaIds, settings: Settings) -> DataFrame:
    """Notifications in; records for the Kafka sink out: each notification, and the balance that a last one set."""
    sequence_id = F.concat_ws("@", "CustomerCardNo", "Sequence")

    def outgoing(topic: Topic, fields: list[str], record_id: Column) -> Column:
        return F.struct(
            F.lit(settings.name_of(topic)).alias("topic"),
            F.col("CustomerCardNo").cast("binary").alias("key"),
            wire.encode(F.struct(*fields), topic, ids).alias("value"),
            wire.cloud_event(record_id, str(topic.value)).alias("headers"),
        )

    notification_fields = [name for name in NOTIFICATION_TYPE.names if name != "is_latest"]
    balance_fields = ["CustomerCardNo", "TotalLoyaltyPoints", "Sequence", "UpdatedTime"]
    notification = outgoing(LOYALTY, notification_fields, F.col("InvoiceNumber"))
    balance = F.when(F.col("is_latest"), outgoing(LOYALTY_BALANCES, balance_fields, sequence_id))
    records = F.array_compact(F.array(notification, balance))
    return notifications.select(F.explode(records).alias("record")).select("record.*")


def loyalty(invoices: DataFrame, ids: SchemaIds, settings: Settings) -> DataFrame:
    """Checked invoices in, records for the Kafka sink out: topic, key, value, headers."""
    return notifications_and_balances(running_totals(purchases(invoices, settings), settings), ids, settings)
