"""Conditional requests: entity tags from versions of entries (RFC 9110, 8.8.3 and 13.1.2)."""

from services.state_stores.entry import Entry


def etag_of(entry: Entry) -> str:
    """The sequence, after the account's opened time where there is one: a new account counts from 1 again."""
    return f'"{entry.opened_time}.{entry.sequence}"' if entry.opened_time else f'"{entry.sequence}"'


def matches(if_none_match: str, etag: str) -> bool:
    """Whether the caller's copy is the current one: ``*`` or any tag of the list, weak or strong."""
    if if_none_match.strip() == "*":
        return True
    return any(tag.strip().removeprefix("W/") == etag for tag in if_none_match.split(","))
