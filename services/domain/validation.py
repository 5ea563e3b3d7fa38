"""The rules of a valid invoice, as data and as functions of a record."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard
from unicodedata import category

from services.domain.invoice import HOME_DELIVERY, PRIME, PosInvoice

_INVISIBLE = ("Cc", "Cf")
"""Unicode's categories of control characters, such as NUL and the STX and ETX of scanners, and of format characters,
such as the word joiner and the zero width space.
"""

# The other planes of Unicode have no such characters, and to search all of them takes a third of a second.
_PLANES = (*range(0x20000), *range(0xE0000, 0xE1000))
BLANKS = "".join(each for each in map(chr, _PLANES) if each.isspace() or category(each) in _INVISIBLE)
"""A text with only these characters is blank. People cannot see them at the end of a card."""

LARGEST_AMOUNT = 1e11
"""Amounts must be smaller. Amounts of real invoices are far smaller. A double is exact to the cent up to 9.0e13 (2**53
cents). A hundred thousand such invoices fit into the 18 digits of a customer's points.
"""

LONGEST_TEXT = 128
"""The largest number of characters of a text that is a key, or that is copied into the record of each line item."""

SECONDS = (10**9, 10**10 - 1)
"""The smallest and the largest CreatedTime that is in seconds (September 2001 to 2286). The pipeline converts it."""

LONGEST_REASON = 500
"""The largest number of characters of the reason of a command."""

MOST_LINE_ITEMS = 10_000
"""With texts of ``LONGEST_TEXT``, the records of one invoice have about ten megabytes, which fit into a worker."""

LARGEST_INVOICE = 4 * 2**20
"""Bytes of the value of an invoice before compression. ``MOST_LINE_ITEMS`` lines of 400 bytes fit. A worker needs up to
400 MB to read a value of this size that has millions of empty parts.
"""

INVOICE_TOO_LARGE = (
    f"larger than {LARGEST_INVOICE // 2**20} MiB before compression, so its dead letter has no value: send shorter "
    "texts or fewer line items"
)
"""The reason of an invoice that is too large. Nobody decodes its value."""


_PSEUDONYM = re.compile(r"p1-[a-z2-7]{52}")


def is_pseudonym(name: str) -> bool:
    """Whether a name has the form of a pseudonym (``services.pseudonyms``). No new account has such a card."""
    return _PSEUDONYM.fullmatch(name) is not None


class Requirement(NamedTuple):
    """A requirement of a field: the text of a dead letter that breaks it, and whether a value meets it.

    A missing value breaks only ``GIVEN``.
    """

    broken: str
    meets: Callable[[Any], bool]


GIVEN = Requirement("is missing", lambda value: value is not None)
NOT_BLANK = Requirement("is blank", lambda text: text.strip(BLANKS) != "")
SHORT = Requirement(f"is longer than {LONGEST_TEXT} characters", lambda text: len(text) <= LONGEST_TEXT)
NO_BLANKS_AROUND = Requirement("has blanks at its start or end", lambda text: text.strip(BLANKS) == text)
# Only PRIME forbids blanks around a card. The account of another type has the card without its blanks.
NO_PSEUDONYM = Requirement(
    "is a pseudonym: send the card of the customer", lambda text: not is_pseudonym(text.strip(BLANKS))
)
FEW = Requirement(f"has more than {MOST_LINE_ITEMS} elements", lambda elements: len(elements) <= MOST_LINE_ITEMS)
FINITE = Requirement("is not a number: it is NaN or infinite", math.isfinite)
BOUNDED = Requirement(
    f"is too large: it must be between -{LARGEST_AMOUNT:,.0f} and {LARGEST_AMOUNT:,.0f}",
    lambda amount: abs(amount) < LARGEST_AMOUNT,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """A requirement of a field, always or only if another field has a certain value.

    Attributes:
        field: its name, ``Parent.Child`` in a nested record, or ``Parent[].Child`` in each element of an array.
        when: (field, value in upper case). Upper and lower case are equal.
    """

    field: str
    requirement: Requirement
    when: tuple[str, str] | None = None

    @property
    def reason(self) -> str:
        """The reason in the dead letter of an invoice that breaks the rule."""
        condition = f" though {self.when[0]} is {self.when[1]}" if self.when else ""
        return f"{self.field} {self.requirement.broken}{condition}"


_COPIED_TEXTS = (
    *("InvoiceNumber", "StoreID", "PosID", "CustomerCardNo", "CustomerType", "PaymentMethod", "DeliveryType"),
    *("DeliveryAddress.City", "DeliveryAddress.State", "DeliveryAddress.PinCode"),
)

_AMOUNTS = (
    *("TotalAmount", "TaxableAmount", "CGST", "SGST", "CESS"),
    *("InvoiceLineItems[].ItemPrice", "InvoiceLineItems[].TotalValue"),
)


def _required(field: str, when: tuple[str, str] | None = None) -> tuple[Rule, Rule]:
    return Rule(field, GIVEN, when), Rule(field, NOT_BLANK, when)


RULES = (
    # First, so that nothing looks at millions of line items.
    Rule("InvoiceLineItems", FEW),
    *_required("InvoiceNumber"),
    *_required("StoreID"),
    Rule("TotalAmount", GIVEN),
    *(Rule(field, requirement) for field in _AMOUNTS for requirement in (FINITE, BOUNDED)),
    # "PRIME " is not PRIME, so the following rules and the shipment would silently ignore it.
    *(Rule(field, NO_BLANKS_AROUND) for field in ("CustomerType", "DeliveryType")),
    *_required("CustomerCardNo", when=("CustomerType", PRIME)),
    Rule("CustomerCardNo", NO_BLANKS_AROUND, when=("CustomerType", PRIME)),
    Rule("CustomerCardNo", NO_PSEUDONYM),
    *_required("DeliveryAddress.AddressLine", when=("DeliveryType", HOME_DELIVERY)),
    *_required("DeliveryAddress.ContactNumber", when=("DeliveryType", HOME_DELIVERY)),
    *(Rule(field, SHORT) for field in _COPIED_TEXTS),
)


def first_violation(invoice: PosInvoice) -> str | None:
    """Returns the reason of the first broken rule, or None for a valid invoice."""
    for reason, holds in _RULE_CHECKS:
        if not holds(invoice):
            return reason
    return None


def is_in_seconds(created_time: int | None) -> TypeGuard[int]:
    """Whether the pipeline takes a CreatedTime for seconds."""
    return created_time is not None and SECONDS[0] <= created_time <= SECONDS[1]


def in_milliseconds(invoice: PosInvoice) -> PosInvoice:
    """Returns the invoice with its CreatedTime in milliseconds. Some tills send seconds."""
    time = invoice["CreatedTime"]
    return {**invoice, "CreatedTime": time * 1000} if is_in_seconds(time) else invoice


def _field_check(requirement: Requirement, field: str) -> Callable[[Any], bool]:
    """Returns a function that tells whether a record meets a requirement. A missing value fails only GIVEN."""
    head, _, rest = field.partition(".")
    if head.endswith("[]"):
        name, check = head[:-2], _field_check(requirement, rest)
        return lambda record: all(check(element or {}) for element in record.get(name) or ())
    if rest:
        check = _field_check(requirement, rest)
        return lambda record: check(record.get(head) or {})
    meets = requirement.meets
    if requirement is GIVEN:
        return lambda record: meets(record.get(head))
    return lambda record: (value := record.get(head)) is None or meets(value)


def _rule_check(rule: Rule) -> Callable[[Any], bool]:
    """Returns a function that tells whether an invoice meets a rule."""
    check = _field_check(rule.requirement, rule.field)
    if not rule.when:
        return check
    field, expected = rule.when
    return lambda invoice: (invoice.get(field) or "").upper() != expected or check(invoice)


# Made only once, because these functions check every invoice.
_RULE_CHECKS = [(rule.reason, _rule_check(rule)) for rule in RULES]
