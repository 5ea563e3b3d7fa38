"""Finds returns that never reached the account that bought. It needs the results of all customers.

A return can have another card than its purchase, or no card. So the result of one customer does not show that it is
missing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from services.audit.facts import Source
from services.domain.account.model import EVENT_MEMORY, Account
from services.domain.events import derived_id
from services.domain.programme import Programmes

RETURNABLE = T.StructType(
    [
        T.StructField("original", T.StringType()),
        T.StructField("since", T.LongType()),
        T.StructField("until", T.LongType()),
    ]
)
"""The type of Returnable."""


class Returnable(NamedTuple):
    """A purchase of an account.

    The account must know each return of it that was appended between ``since`` and ``until``. Both times are included.
    They are milliseconds since the epoch.
    """

    original: str
    since: int
    until: int


def returnables(account: Account, programmes: Programmes) -> Iterator[Returnable]:
    """The purchases of an account. ``since`` is the time from which on the account still knows every return."""
    shortest = max(EVENT_MEMORY, min(version.return_window for version in programmes.versions))
    for number, bought in account.purchases.items():
        window = programmes.version(bought.programme_version).return_window
        yield Returnable(number, account.updated_time - shortest, bought.append_time + window)


def with_differences(customers: DataFrame, returns: DataFrame, records: DataFrame) -> DataFrame:
    """The customers with differences: pseudonym, card, version, differences.

    It adds the returns that were not forwarded to the customer. A command that the loyalty query has not read yet is no
    difference. An index with too many waiting returns drops some. These are differences.

    Args:
        customers: also with ``purchases``, an array of RETURNABLE, and ``returns``, the numbers that the account knows.
        returns: the processed returns, as ``Snapshot.returns``.
        records: see ``Events``.
    """
    customer = ("pseudonym", "card", "version")
    own = customers.select(*customer, F.explode("differences").alias("it")).select(*customer, "it.*")
    return (
        own.unionByName(_not_forwarded(customers, returns, records))
        .groupBy(*customer)
        .agg(F.sort_array(F.collect_list(F.struct("where", "what", "settles"))).alias("differences"))
    )


def _not_forwarded(customers: DataFrame, returns: DataFrame, records: DataFrame) -> DataFrame:
    """The returns that were not forwarded: pseudonym, card, version, where, what, settles."""
    owner = customers.select("pseudonym", "card", "version", F.explode("purchases").alias("bought"))
    known = customers.select("pseudonym", F.explode("returns").alias("number"), F.lit(True).alias("is_known"))
    in_time = F.col("append_time").between(F.col("since"), F.col("until"))
    # If two customers have bought with one number, the return of one of them is enough.
    of_return = Window.partitionBy("number")
    return (
        _unsent(returns, records)
        .join(owner.select("pseudonym", "card", "version", "bought.*"), "original")
        .where(in_time)
        .join(known, ["pseudonym", "number"], "left")
        .withColumn("is_known", F.max("is_known").over(of_return))
        .where(F.col("is_known").isNull())
        .select(
            "pseudonym",
            "card",
            "version",
            F.lit(str(Source.EVENT)).alias("where"),
            F.format_string("not forwarded: return %s of invoice %s", "number", "original").alias("what"),
            # The current micro-batch may write the command.
            F.lit(True).alias("settles"),
        )
    )


def _unsent(returns: DataFrame, records: DataFrame) -> DataFrame:
    """The returns without a command to another account: number, original, append_time."""
    number = F.col("event_id")
    # A lambda has no type hints. With them Spark would expect a vectorised function.
    sent = F.udf(lambda returned: list(commands_of(returned)), "array<string>")(number)
    # The first character of an identity distinguishes invoices from commands.
    commands = records.where(F.col("identity").startswith("!")).select(
        F.substring("identity", 2, 2**31 - 1).alias("sent"), F.lit(True).alias("is_sent")
    )
    return (
        returns.select(number.alias("number"), "original", "append_time", F.explode(sent).alias("sent"))
        .join(commands, "sent", "left")
        .groupBy("number", "original")
        .agg(F.min("append_time").alias("append_time"), F.max("is_sent").alias("is_sent"))
        .where(F.col("is_sent").isNull())
    )


def commands_of(number: str) -> tuple[str, str]:
    """The ids of the commands that bring a return to another account. The index and replaced cards send them."""
    return derived_id(number, "/forward"), derived_id(number, "/redirected")
