"""The rules of a valid command that do not depend on the account. ``services.domain.account`` has the other rules."""

from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any

from services.domain.formats import LAST_TIME
from services.domain.validation import LARGEST_AMOUNT, LONGEST_REASON, LONGEST_TEXT, MOST_LINE_ITEMS, is_pseudonym

_SHORT = ("CommandID", "CustomerCardNo", "RequestHash", "RedemptionID", "Counterparty", "OriginID", "Actor")
# Other records repeat these texts, for example the credit of a transfer. The limits keep such a record far below the
# largest size of its topic.
_LONGEST_TEXTS = {**dict.fromkeys(_SHORT, LONGEST_TEXT), "Reason": LONGEST_REASON}
_POSITIVE = ("reserve", "transfer", "receive", "import")
_WITH_COUNTERPARTY = ("transfer", "receive", "replace", "merge", "absorb")
_WITH_LOTS = ("receive", "import")
_OF_INVOICES = ("forward", "forget", "redirect")
KINDS = (
    *("reserve", "capture", "void", "adjust", "transfer", "receive", "import", "block", "unblock"),
    *("replace", "merge", "absorb", *_OF_INVOICES, "erase"),
)

Command = Mapping[str, Any]
"""A LoyaltyCommand in its newest schema."""


def first_violation(command: Command, key: bytes | None) -> str | None:
    """Returns the reason of the first broken rule, or None for a valid command with this key of its record."""
    if key != command["CustomerCardNo"].encode():
        return "the key is not the CustomerCardNo"
    return next((reason for reason, is_broken in _RULES.items() if is_broken(command)), None)


def _is_too_long(name: str, longest: int) -> Callable[[Command], bool]:
    return lambda command: len(command[name]) > longest


def _of_kind(kinds: Collection[str], is_broken: Callable[[Command], bool]) -> Callable[[Command], bool]:
    return lambda command: command["Kind"] in kinds and is_broken(command)


def _with_points(is_broken: Callable[[Decimal], bool]) -> Callable[[Command], bool]:
    return lambda command: command["Points"] is not None and is_broken(command["Points"])


def _blank(name: str) -> Callable[[Command], bool]:
    return lambda command: not command[name].strip()


def _is_pseudonym(name: str) -> Callable[[Command], bool]:
    return lambda command: is_pseudonym(command[name])


def _are_valid_lots(lots: list[dict[str, int]], points: Decimal | None) -> bool:
    """Whether there are lots, each is valid, and their sum is these points, if the command has points."""
    if not 0 < len(lots) <= MOST_LINE_ITEMS:
        return False
    if not all(lot["Points"] > 0 and 0 <= lot["ExpiresTime"] <= LAST_TIME for lot in lots):
        return False
    total = sum(lot["Points"] for lot in lots)
    return total < LARGEST_AMOUNT * 100 and (points is None or total == points * 100)


def _is_valid_invoice(invoice: Mapping[str, Any] | None) -> bool:
    if invoice is None or not invoice["InvoiceNumber"].strip():
        return False
    lines = invoice["InvoiceLineItems"]
    amounts = (invoice["TotalAmount"], invoice["TaxableAmount"], *(line["TotalValue"] for line in lines))
    # This comparison also refuses NaN, which is not less than any number.
    are_bounded = all(abs(amount) < LARGEST_AMOUNT for amount in amounts if amount is not None)
    return are_bounded and len(lines) <= MOST_LINE_ITEMS


_RULES: Mapping[str, Callable[[Command], bool]] = {
    "CommandID is blank": _blank("CommandID"),
    "CustomerCardNo is blank": _blank("CustomerCardNo"),
    **{f"{name} is too long": _is_too_long(name, longest) for name, longest in _LONGEST_TEXTS.items()},
    "Kind is none of " + ", ".join(KINDS): lambda command: command["Kind"] not in KINDS,
    "Points are missing": _of_kind(("reserve", "transfer", "adjust"), lambda command: command["Points"] is None),
    "Points are out of range": _with_points(lambda points: abs(points) >= LARGEST_AMOUNT),
    "Points are not above 0": _of_kind(_POSITIVE, _with_points(lambda points: points <= 0)),
    "Points are 0": _of_kind(("adjust",), _with_points(lambda points: points == 0)),
    "RedemptionID is blank": _of_kind(("capture", "void"), _blank("RedemptionID")),
    "Counterparty is blank": _of_kind(_WITH_COUNTERPARTY, _blank("Counterparty")),
    # These commands could open an account with such a card. Release 0.1 opened such accounts. Commands can still merge
    # and erase them. A merge opens no account, because the API requires that the other card has one.
    "CustomerCardNo is a pseudonym": _of_kind(("adjust", "import"), _is_pseudonym("CustomerCardNo")),
    "Counterparty is a pseudonym": _of_kind(("transfer", "replace"), _is_pseudonym("Counterparty")),
    "Lots do not make up the Points": _of_kind(
        _WITH_LOTS, lambda command: not _are_valid_lots(command["Lots"], command["Points"])
    ),
    "the Invoice is missing or not valid": _of_kind(
        _OF_INVOICES, lambda command: not _is_valid_invoice(command["Invoice"])
    ),
    "IssuedTime is out of range": _of_kind(("forward",), lambda command: not 0 <= command["IssuedTime"] <= LAST_TIME),
}
"""By reason, a function that returns whether a command breaks the rule. The first broken rule gives the reason."""
