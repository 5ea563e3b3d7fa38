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
    mixed = F.exists(lines, _is_returned) & F.exists(lines, _is_sold)
    named = F.when(mixed, _EXCHANGE).otherwise(_RETURN)
    unnamed = F.when(invoice.getField("TotalAmount") < 0, _RETURN).otherwise(_SALE)
    return F.when(names_original(invoice), named).otherwise(unnamed)


def line_kind(of_invoice: Column, line: Column) -> Column:
    """The kind of a line of an invoice of that kind: sale or return."""
    return F.when(of_invoice != _EXCHANGE, of_invoice).when(_is_returned(line), _RETURN).otherwise(_SALE)


def names_original(invoice: Column) -> Column:
    return F.coalesce(F.btrim(invoice.getField("OriginalInvoiceNumber"), F.lit(BLANKS)) != "", F.lit(False))


def net_amount(invoice: Column) -> Column:
    """The amount that the invoice adds to the sales of its shop. A return subtracts, with any sign of the till.

    If a return has lines of both signs, its sign has a meaning: the customer can pay more for a discount that the
    return takes back than the shop pays for the returned goods.
    """
    amount, lines = invoice.getField("TotalAmount"), invoice.getField("InvoiceLineItems")
    mixed = F.exists(lines, lambda line: _value(line) < 0) & F.exists(lines, lambda line: _value(line) > 0)
    is_mixed = F.coalesce(mixed, F.lit(False)) & names_original(invoice)
    return F.when((invoice_kind(invoice) == _RETURN) & ~is_mixed, -F.abs(amount)).otherwise(amount)


def _is_returned(line: Column) -> Column:
    """Whether the line is negative, or takes back a discount."""
    return (_value(line) < 0) | ((_value(line) > 0) & _takes_back(line))


def _is_sold(line: Column) -> Column:
    return (_value(line) > 0) & ~_takes_back(line)


def _value(line: Column) -> Column:
    return line.getField("TotalValue")


def _takes_back(line: Column) -> Column:
    """Whether a positive line takes back a discount."""
    negative = (line.getField("ItemPrice") < 0), (line.getField("ItemQty") < 0)
    price, quantity = (F.coalesce(each, F.lit(False)) for each in negative)
    return price | quantity
