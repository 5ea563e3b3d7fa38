"""The definition of services.domain.returns as Spark columns."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from services.domain.returns import InvoiceKind
from services.domain.validation import BLANKS

# Plain texts: Spark turns them into literals.
_SALE, _RETURN, _EXCHANGE = str(InvoiceKind.SALE), str(InvoiceKind.RETURN), str(InvoiceKind.EXCHANGE)


def invoice_kind(invoice: Column) -> Column:
    """The kind of a valid invoice: sale, return or exchange."""
    lines = invoice.getField("InvoiceLineItems")
    mixed = F.exists(lines, lambda line: _value(line) < 0) & F.exists(lines, lambda line: _value(line) > 0)
    named = F.when(mixed, _EXCHANGE).otherwise(_RETURN)
    unnamed = F.when(invoice.getField("TotalAmount") < 0, _RETURN).otherwise(_SALE)
    return F.when(names_original(invoice), named).otherwise(unnamed)


def line_kind(of_invoice: Column, line: Column) -> Column:
    """The kind of a line of an invoice of that kind: sale or return. In an exchange the sign of the line decides."""
    of_sign = F.when(_value(line) < 0, _RETURN).otherwise(_SALE)
    return F.when(of_invoice == _EXCHANGE, of_sign).otherwise(of_invoice)


def names_original(invoice: Column) -> Column:
    return F.coalesce(F.btrim(invoice.getField("OriginalInvoiceNumber"), F.lit(BLANKS)) != "", F.lit(False))


def net_amount(invoice: Column) -> Column:
    """The amount that the invoice adds to the sales of its store. A return subtracts, with any sign of the till."""
    amount = invoice.getField("TotalAmount")
    return F.when(invoice_kind(invoice) == _RETURN, -F.abs(amount)).otherwise(amount)


def _value(line: Column) -> Column:
    return line.getField("TotalValue")
