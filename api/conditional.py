"""Conditional requests: entity tags from sequences (RFC 9110, 8.8.3 and 13.1.2)."""


def etag_of(sequence: int) -> str:
    return f'"{sequence}"'


def matches(if_none_match: str, etag: str) -> bool:
    """Whether the caller's copy is the current one: ``*`` or any tag of the list, weak or strong."""
    if if_none_match.strip() == "*":
        return True
    return any(tag.strip().removeprefix("W/") == etag for tag in if_none_match.split(","))
