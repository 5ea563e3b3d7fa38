"""loyalty-commands as a DataFrame: decoded and checked, every record of the topic exactly one row."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipelines.columns import avro
from schemas.topics import LOYALTY_COMMANDS
from services.domain.validation import LARGEST_AMOUNT, LONGEST_TEXT, MOST_LINE_ITEMS
from services.messaging.schema_ids import SchemaIds

# What Python's str.strip leaves: a command that passes here must not be refused there.
_NO_BLANK = r"[^\s\p{Z}\x1c-\x1f\x85]"
_WIDE = "decimal(38,0)"
_KINDS = ("reserve", "capture", "void", "adjust", "transfer", "receive", "erase")


def checked(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Adds ``command`` (struct LoyaltyCommand, null where undecodable) and ``reason`` (null where it is valid)."""
    parsed, unknown = avro.decode(F.col("value"), LOYALTY_COMMANDS, ids)
    is_readable = F.col("parsed").getField(avro.MARKER).isNotNull() & avro.texts_are_utf8(
        F.col("parsed"), avro.record_type(LOYALTY_COMMANDS)
    )
    undecodable = (
        F.when(F.col("value").isNull(), F.lit("no value"))
        .when(F.col("unknown").isNotNull(), F.col("unknown"))
        .when(~is_readable, F.lit("not an Avro LoyaltyCommand of its schema id"))
    )
    return (
        # Steps of their own, for the reason given in invoices.checked.
        records.withColumns({"parsed": parsed, "unknown": unknown})
        .withColumn("undecodable", undecodable)
        .withColumn("command", F.when(F.col("undecodable").isNull(), F.col("parsed").dropFields(avro.MARKER)))
        .withColumn("reason", F.coalesce("undecodable", _first_violation(F.col("command"), F.col("key"))))
        .drop("parsed", "unknown", "undecodable")
    )


def _first_violation(command: Column, key: Column) -> Column:
    """The reason of the first broken rule, or null. What depends on the account is decided there, not here."""
    kind, card, points = (command.getField(name) for name in ("Kind", "CustomerCardNo", "Points"))
    rules = {
        "CommandID is missing": _is_present(command.getField("CommandID")),
        "CommandID is too long": _is_short(command.getField("CommandID")),
        "CustomerCardNo is missing": _is_present(card),
        "CustomerCardNo is too long": _is_short(card),
        "the key is not the CustomerCardNo": F.coalesce(key == card.cast("binary"), F.lit(False)),
        "Kind is none of " + ", ".join(_KINDS): kind.isin(*_KINDS),
        "Points are out of range": F.abs(points) < LARGEST_AMOUNT,
        "Points are not above 0": ~kind.isin("reserve", "transfer", "receive") | (points > 0),
        "Points are 0": (kind != "adjust") | (points != 0),
        "RedemptionID is missing": ~kind.isin("capture", "void") | _is_present(command.getField("RedemptionID")),
        "RedemptionID is too long": _is_short(command.getField("RedemptionID")),
        "Counterparty is missing": ~kind.isin("transfer", "receive") | _is_present(command.getField("Counterparty")),
        "Counterparty is too long": _is_short(command.getField("Counterparty")),
        "Lots do not make up the Points": (kind != "receive") | _make_up(command.getField("Lots"), points),
    }
    return F.coalesce(*(F.when(~holds, F.lit(reason)) for reason, holds in rules.items()))


def _is_present(text: Column) -> Column:
    return text.rlike(_NO_BLANK)


def _is_short(text: Column) -> Column:
    return F.length(text) <= LONGEST_TEXT


def _make_up(lots: Column, points: Column) -> Column:
    are_good = F.forall(lots, lambda lot: (lot.getField("Points") > 0) & (lot.getField("ExpiresTime") >= 0))
    # As decimals: longs that add up beyond their range would end the query.
    total = F.aggregate(
        lots, F.lit(0).cast(_WIDE), lambda found, lot: (found + lot.getField("Points").cast(_WIDE)).cast(_WIDE)
    )
    return (F.size(lots) <= MOST_LINE_ITEMS) & are_good & (total == points * 100)
