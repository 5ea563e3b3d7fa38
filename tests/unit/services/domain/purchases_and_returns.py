"""Builders of purchases and returns, and what an account makes of them."""

from decimal import Decimal

from services.domain.account.processor import process
from services.domain.entries import Kind
from services.domain.events import Line, Purchase
from services.domain.programme import Programme, Programmes
from tests.support.account_histories import START


def buy(amount, number="bought", time=1, **fields):
    return Purchase(time, number, Decimal(amount), "here", **fields)


def bought(number, time, amount=100):
    """A purchase so many milliseconds after the start of the histories of an account."""
    return Purchase(START + time, f"I{number}", Decimal(amount))


def back(amount, original="bought", number="back", time=2, **fields):
    return Purchase(time, number, -Decimal(amount), "here", original_invoice_number=original, **fields)


def lines(**values):
    """A line for each item, with its value."""
    return tuple(Line(item, Decimal(value)) for item, value in values.items())


def cancelled(**values):
    """A line of a return for each discount that the return takes back."""
    return tuple(Line(item, Decimal(value), takes_back_discount=True) for item, value in values.items())


def after(*events, programme=None, account=None):
    """The outcome of these events for a new account, or for the given one."""
    return process(account, events, Programmes((programme or Programme(),)), "card")


def taken(outcome):
    """The points that each return takes back."""
    return [-entry.points for entry in outcome.entries if entry.kind == Kind.RETURNED]
