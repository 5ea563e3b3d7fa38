"""The rules of a valid command. Rules about the account itself are in ``services.domain.account``."""

from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any

from services.domain.formats import LAST_TIME
from services.domain.validation import LARGEST_AMOUNT, LONGEST_REASON, LONGEST_TEXT, MOST_LINE_ITEMS

_SHORT = ("CommandID", "CustomerCardNo", "RequestHash", "RedemptionID", "Counterparty", "OriginID", "Actor")
# This keeps records that follow from a command, such as the credit of a transfer, far below a topic's limit.
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


def _make_up(lots: list[dict[str, int]], points: Decimal | None) -> bool:
    """Whether there are lots, they are valid, and they have these points in total."""
    are_valid = bool(lots) and all(lot["Points"] > 0 and 0 <= lot["ExpiresTime"] <= LAST_TIME for lot in lots)
    if not are_valid or len(lots) > MOST_LINE_ITEMS:
        return False
    total = sum(lot["Points"] for lot in lots)
    return total < LARGEST_AMOUNT * 100 and (points is None or total == points * 100)


def _is_valid(invoice: Mapping[str, Any] | None) -> bool:
    if invoice is None or not invoice["InvoiceNumber"].strip():
        return False
    lines = invoice["InvoiceLineItems"]
    amounts = (invoice["TotalAmount"], invoice["TaxableAmount"], *(line["TotalValue"] for line in lines))
    # NaN is not less than any number.
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
    "Lots do not make up the Points": _of_kind(
        _WITH_LOTS, lambda command: not _make_up(command["Lots"], command["Points"])
    ),
    "the Invoice is missing or not valid": _of_kind(_OF_INVOICES, lambda command: not _is_valid(command["Invoice"])),
    "IssuedTime is out of range": _of_kind(("forward",), lambda command: not 0 <= command["IssuedTime"] <= LAST_TIME),
}
"""By reason, whether a command breaks the rule, in the order in which they are tried."""
