"""Finds returns that never reached the account that bought. Audit and rebuild share this module.

A return can have another card than its purchase, or no card. So only the results of all customers show that a return is
missing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipelines.columns.types import struct
from pipelines.deduplication.stream import event_id
from services.audit.facts import Source
from services.domain.account.model import EVENT_MEMORY, Account
from services.domain.events import derived_id
from services.domain.programme import Programmes

RETURNABLE = struct(original="string", bought_time="long", since="long", until="long")
"""The type of Returnable."""


class Returnable(NamedTuple):
    """A purchase of an account, with its append time.

    The account must know each return of it that was appended between ``since`` and ``until`` (both inclusive, in
    milliseconds since the epoch).
    """

    original: str
    bought_time: int
    since: int
    until: int


def returnables(account: Account, programmes: Programmes, updated_time: int) -> Iterator[Returnable]:
    """The purchases of an account. ``since`` is the time from which on the account still knows every return.

    ``updated_time`` is when the account last forgot old returns, milliseconds since the epoch.
    """
    shortest = max(EVENT_MEMORY, min(version.return_window for version in programmes.versions))
    for number, bought in account.purchases.items():
        window = programmes.version(bought.programme_version).return_window
        yield Returnable(number, bought.append_time, updated_time - shortest, bought.append_time + window)


def with_differences(customers: DataFrame, returns: DataFrame, records: DataFrame) -> DataFrame:
    """The customers with differences: pseudonym, card, version, differences.

    The differences include the returns that were not forwarded to the customer, also those that the index of invoices
    dropped because too many returns waited. They include the commands to other accounts that are in no topic and in no
    archive. A command that the loyalty query has not read yet is no difference.

    Args:
        customers: also with ``purchases``, an array of RETURNABLE, ``returns``, the numbers that the account knows, and
            ``commands``, the ids of the commands that the account has sent.
        returns: the processed returns, as ``Snapshot.returns``.
        records: see ``Events``.
    """
    customer = ("pseudonym", "card", "version")
    own = customers.select(*customer, F.explode("differences").alias("it")).select(*customer, "it.*")
    missing = not_forwarded(customers.select(*customer, "purchases", "returns"), returns, records).select(
        *customer, F.format_string("not forwarded: return %s of invoice %s", "number", "original").alias("what")
    )
    unsent = (
        customers.select(*customer, F.explode("commands").alias("id"))
        .join(records.select(event_id().alias("id")), "id", "left_anti")
        .select(*customer, F.concat(F.lit("not sent: "), "id").alias("what"))
    )
    # The current micro-batch may write the command.
    of_events = {"where": F.lit(str(Source.EVENT)), "settles": F.lit(True)}
    return (
        own.unionByName(missing.union(unsent).withColumns(of_events))
        .groupBy(*customer)
        .agg(F.sort_array(F.collect_list(F.struct("where", "what", "settles"))).alias("differences"))
    )


def not_forwarded(customers: DataFrame, returns: DataFrame, records: DataFrame) -> DataFrame:
    """The returns that the account that bought does not know, and must know.

    A return is on its way if the index of invoices has sent it to any account, or if a replaced card has sent it to the
    account that bought. A replaced card sends each return to the next card, and this card need not have bought.

    Gives number, original, append_time and event of the return, and the other columns of the customer who bought.

    Args:
        customers: pseudonym, ``purchases``, ``returns`` as for ``with_differences``, and other columns.
        returns, records: as for ``with_differences``.
    """
    number = F.col("number")
    # Use a lambda: with the type hints of a function, Spark would expect a vectorised function.
    commands_of_number = F.udf(lambda returned: [f"!{each}" for each in commands_of(returned)], "array<string>")(number)
    own, forwarded, redirected = F.concat(F.lit("#"), number), commands_of_number[0], commands_of_number[1]
    owner = customers.drop("returns").withColumn("bought", F.explode("purchases")).drop("purchases")
    commands = records.where(F.col("identity").startswith("!")).select("pseudonym", "identity")
    of_customers = customers.select("pseudonym", F.explode("returns").alias("number"))
    known = of_customers.select("pseudonym", own.alias("identity")).union(commands).withColumn("is_known", F.lit(True))
    in_time = F.col("append_time").between(F.col("since"), F.col("until"))
    # If two customers have bought the same number, it is enough that one of them knows the return.
    of_return = Window.partitionBy("number")
    # Otherwise the last customer who bought before the return must know it, or the first one who bought after it.
    bought_time = F.col("bought_time")
    is_before = bought_time <= F.col("append_time")
    rank = F.struct(is_before, F.when(is_before, bought_time).otherwise(-bought_time))
    is_owner = rank == F.max(rank).over(Window.partitionBy("number", "original"))
    return (
        returns.select(F.col("event_id").alias("number"), "original", "append_time", "event")
        .withColumn("identity", forwarded)
        .join(commands.select("identity"), "identity", "left_anti")
        .groupBy("number", "original")
        .agg(F.min(F.struct("append_time", "event")).alias("first"))
        .select("number", "original", "first.*", F.explode(F.array(own, redirected)).alias("identity"))
        .join(owner.select("*", "bought.*").drop("bought"), "original")
        .withColumn("is_owner", is_owner)
        .where(in_time)
        .join(known, ["pseudonym", "identity"], "left")
        .withColumn("is_known", F.max("is_known").over(of_return))
        .where(F.col("is_known").isNull() & F.col("is_owner") & (F.col("identity") == own))
        .drop("bought_time", "since", "until", "is_owner", "is_known", "identity")
    )


def commands_of(number: str) -> tuple[str, str]:
    """The ids of the commands that bring a return to another account: from the index, and from a replaced card."""
    return derived_id(number, "/forward"), derived_id(number, "/redirected")
