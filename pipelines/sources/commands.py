"""loyalty-commands: decodes and checks the records. Each record of the topic stays exactly one row."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipelines.columns import avro
from schemas.topics import LOYALTY_COMMANDS
from services.domain.formats import LAST_TIME
from services.domain.validation import LARGEST_AMOUNT, LONGEST_REASON, LONGEST_TEXT, MOST_LINE_ITEMS
from services.messaging.schema_ids import SchemaIds

# The characters that Python's str.strip keeps. A command that passes here must not be refused by Python code later.
_NO_BLANK = r"[^\s\p{Z}\x1c-\x1f\x85]"
_WIDE = "decimal(38,0)"
_LONGEST_TEXTS = {
    **dict.fromkeys(("CommandID", "CustomerCardNo", "RequestHash", "RedemptionID"), LONGEST_TEXT),
    "Counterparty": LONGEST_TEXT,
    "OriginID": LONGEST_TEXT,
    "Actor": LONGEST_TEXT,
    "Reason": LONGEST_REASON,
}
_WITH_COUNTERPARTY = ("transfer", "receive", "replace", "merge", "absorb")
_OF_INVOICES = ("forward", "forget", "redirect")
_KINDS = (
    *("reserve", "capture", "void", "adjust", "transfer", "receive", "import", "block", "unblock"),
    *("replace", "merge", "absorb", *_OF_INVOICES, "erase"),
)


def check_commands(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``command`` (struct LoyaltyCommand, null if it cannot be decoded) and ``reason`` (null if it is valid).

    Takes records as ``sources.kafka`` gives them.
    """
    parsed, unknown = avro.decode(F.col("value"), LOYALTY_COMMANDS, ids)
    undecodable = (
        F.when(F.col("value").isNull(), F.lit("no value"))
        .when(F.col("unknown").isNotNull(), F.col("unknown"))
        .otherwise(avro.unreadable(F.col("parsed"), LOYALTY_COMMANDS))
    )
    return (
        # Parsing is a step of its own for the reason given in invoices.check_invoices.
        records.withColumns({"parsed": parsed, "unknown": unknown})
        .withColumn("undecodable", undecodable)
        .withColumn("command", F.when(F.col("undecodable").isNull(), F.col("parsed").dropFields(avro.MARKER)))
        .withColumn("reason", F.coalesce("undecodable", _first_violation(F.col("command"), F.col("key"))))
        .drop("parsed", "unknown", "undecodable")
    )


def _first_violation(command: Column, key: Column) -> Column:
    """The reason of the first broken rule, or null. Rules about the account itself are in the domain, not here."""
    kind, card, points = (command.getField(name) for name in ("Kind", "CustomerCardNo", "Points"))
    invoice = command.getField("Invoice")
    rules = {
        "CommandID is blank": _is_not_blank(command.getField("CommandID")),
        "CustomerCardNo is blank": _is_not_blank(card),
        # So the records that follow from a command, such as the credit of a transfer, are far below a topic's limit.
        **{
            f"{name} is too long": F.length(command.getField(name)) <= longest
            for name, longest in _LONGEST_TEXTS.items()
        },
        "the key is not the CustomerCardNo": F.coalesce(key == card.cast("binary"), F.lit(False)),
        "Kind is none of " + ", ".join(_KINDS): kind.isin(*_KINDS),
        "Points are out of range": F.abs(points) < LARGEST_AMOUNT,
        "Points are not above 0": ~kind.isin("reserve", "transfer", "receive", "import") | (points > 0),
        "Points are 0": (kind != "adjust") | (points != 0),
        "RedemptionID is blank": ~kind.isin("capture", "void") | _is_not_blank(command.getField("RedemptionID")),
        "Counterparty is blank": ~kind.isin(*_WITH_COUNTERPARTY) | _is_not_blank(command.getField("Counterparty")),
        "Lots do not make up the Points": ~kind.isin("receive", "import") | _sum_to(command.getField("Lots"), points),
        "the Invoice is missing or not valid": ~kind.isin(*_OF_INVOICES) | _is_valid(invoice),
        "IssuedTime is out of range": (kind != "forward") | command.getField("IssuedTime").between(0, LAST_TIME),
    }
    return F.coalesce(*(F.when(~holds, F.lit(reason)) for reason, holds in rules.items()))


def _is_valid(invoice: Column) -> Column:
    amounts = (invoice.getField("TotalAmount"), F.coalesce(invoice.getField("TaxableAmount"), F.lit(0.0)))
    lines = invoice.getField("InvoiceLineItems")
    are_bounded = F.forall(lines.getField("TotalValue"), lambda value: value.isNull() | _is_bounded(value))
    is_valid = _is_not_blank(invoice.getField("InvoiceNumber")) & (F.size(lines) <= MOST_LINE_ITEMS) & are_bounded
    for amount in amounts:
        is_valid &= _is_bounded(amount)
    return F.coalesce(is_valid, F.lit(False))


def _is_bounded(amount: Column) -> Column:
    # Spark orders NaN above every number.
    return F.abs(amount) < LARGEST_AMOUNT


def _is_not_blank(text: Column) -> Column:
    return text.rlike(_NO_BLANK)


def _sum_to(lots: Column, points: Column) -> Column:
    are_valid = F.forall(
        lots, lambda lot: (lot.getField("Points") > 0) & lot.getField("ExpiresTime").between(0, LAST_TIME)
    )
    # Adds decimals, because an overflow of longs would end the query.
    total = F.aggregate(
        lots, F.lit(0).cast(_WIDE), lambda total, lot: (total + lot.getField("Points").cast(_WIDE)).cast(_WIDE)
    )
    return (F.size(lots) <= MOST_LINE_ITEMS) & are_valid & (total == points * 100)
