"""The data of an account with which an audit finds returns that never reached it."""

from collections.abc import Iterator
from typing import NamedTuple

from services.domain.account.model import EVENT_MEMORY, Account
from services.domain.events import derived_id
from services.domain.programme import Programmes


class Returnable(NamedTuple):
    """A purchase of an account.

    The account must know each return of it that was appended between ``since`` and ``until``. Both times are included.
    They are milliseconds since the epoch.
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
    """The ids of the commands that bring a return to another account. The index and replaced cards send them."""
    return derived_id(number, "/forward"), derived_id(number, "/redirected")
