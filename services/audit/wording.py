"""The text of each field that differs. The topic audit-runs keeps the texts, so they show no card and no free text."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from services.domain.account.model import Account
from services.domain.entries import Entry
from services.domain.formats import to_points

_POINTS = {"points", "total", "available", "pending", "reserved", "debt", "reserved_debt", "earned_in_period"}

_PERSONAL = {"reason", "actor", "counterparty", "moved_to", "former_cards", "MovedTo", "CustomerCardNo"}
"""The texts do not show the values of these fields."""

_LONG = {"purchases", "returns", "commands"}
"""The texts show only the keys of these maps. The values have the baskets of the customer and hashes of requests."""

_SHOWN = 3
"""The largest number of keys that a text shows, so that a run with many differences fits into its record."""


def wrong_fields(expected: Entry | Account, found: Entry | Account) -> str:
    """The fields that differ, as text."""
    if expected == found:
        return ""
    return wrong_of((each.name for each in fields(expected) if each.compare), expected, found)


def wrong_of(names: Iterable[str], expected: Entry | Account, found: Entry | Account) -> str:
    """Those of the named fields that differ, as text."""
    pairs = ((name, getattr(expected, name), getattr(found, name)) for name in names)
    return ", ".join(wrong_field(*pair) for pair in pairs if pair[1] != pair[2])


def wrong_field(name: str, expected: Any, found: Any) -> str:
    if name in _PERSONAL:
        return f"{name} differs"
    if name in _LONG:
        keys = sorted(str(key) for key in expected | found if expected.get(key) != found.get(key))
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        return f"{name} differs at {', '.join(keys[:_SHOWN])}{more}"
    if name in _POINTS:
        expected, found = to_points(expected), to_points(found)
    return f"{name} is {found} and should be {expected}"
