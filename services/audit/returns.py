"""What an audit needs to know of an account to find returns that never reached it."""

from collections.abc import Iterator
from typing import NamedTuple

from services.domain.account.model import EVENT_MEMORY, Account
from services.domain.events import derived_id
from services.domain.programme import Programmes


class Returnable(NamedTuple):
    """A purchase of an account. Each return of it with an append time between ``since`` and ``until`` must be there.

    Times are milliseconds since the epoch, and both are included.
    """

    original: str
    since: int
    until: int


def returnables(account: Account, programmes: Programmes) -> Iterator[Returnable]:
    """The purchases of an account. ``since`` is the time from which on the account still knows every return."""
    shortest = max(EVENT_MEMORY, min(version.return_window for version in programmes.versions))
    for number, bought in account.purchases.items():
        window = programmes.version(bought.programme_version).return_window
        yield Returnable(number, account.updated_time - shortest, bought.append_time + window)


def commands_of(number: str) -> tuple[str, str]:
    """The ids of the commands that bring a return to another account: from the index, and from a replaced card."""
    return derived_id(number, "/forward"), derived_id(number, "/redirected")
