"""API keys: their text, their record and whether they are valid. This module does no I/O.

A key is 32 random bytes, so nobody can guess it from its hash. NIST SP 800-63B, section 5.1.1.2, requires a slow hash
for passwords, because people choose them. For a random key it would only slow down each request.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, Self

_TEXT = re.compile(r"lk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}", re.ASCII)
_ID_BYTES, _SECRET_BYTES = 6, 32


class Scope(StrEnum):
    """What a caller of the API may do."""

    BALANCE_READ = "balance:read"
    POINTS_REDEEM = "points:redeem"
    POINTS_ADJUST = "points:adjust"
    CARD_MANAGE = "card:manage"
    CUSTOMER_ERASE = "customer:erase"
    LEDGER_READ = "ledger:read"
    PROGRAMME_PUBLISH = "programme:publish"
    DEAD_LETTERS = "dead-letters:manage"
    OPERATE = "operate"


def scopes_of(names: Collection[str]) -> frozenset[Scope]:
    """The scopes with these names. It ignores names that this API does not know: they belong to other services."""
    return frozenset(scope for scope in Scope if scope.value in names)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known about a key. Times are milliseconds since the epoch.

    Attributes:
        name: who uses the key, in the words of the operator.
        hash: SHA-256 of the text of the key, in hexadecimal digits.
        store_ids: the shops that the key is limited to. Empty: no limit.
        expires_time: the key is not valid from this time on.
        revoked_time: 0 for a key that is not revoked.
    """

    key_id: str
    name: str
    hash: str
    scopes: frozenset[Scope]
    store_ids: frozenset[str]
    created_time: int
    expires_time: int
    revoked_time: int = 0

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The key of a record ApiKey."""
        return cls(
            record["KeyID"],
            record["Name"],
            record["Hash"],
            scopes_of(record["Scopes"]),
            frozenset(record["StoreIDs"]),
            record["CreatedTime"],
            record["ExpiresTime"],
            record["RevokedTime"],
        )

    def to_record(self) -> dict[str, Any]:
        fields = asdict(self)
        names = ("KeyID", "Name", "Hash", "Scopes", "StoreIDs", "CreatedTime", "ExpiresTime", "RevokedTime")
        record = dict(zip(names, fields.values(), strict=True))
        return {**record, "Scopes": sorted(self.scopes), "StoreIDs": sorted(self.store_ids)}

    def is_valid_at(self, now: int) -> bool:
        return not self.revoked_time and now < self.expires_time

    def allows_the_same(self, other: Self) -> bool:
        return (self.scopes, self.store_ids) == (other.scopes, other.store_ids)

    def matches(self, text: str) -> bool:
        """Whether this text is the key. The comparison takes the same time for every wrong text."""
        return hmac.compare_digest(self.hash, hash_of(text))

    def revoked(self, now: int) -> Self:
        """The same key, revoked. A key that was already revoked keeps the time of its revocation."""
        return replace(self, revoked_time=self.revoked_time or now)


class NewKey(NamedTuple):
    """A new key. Its text is shown once, and only its hash is stored."""

    text: str
    key: ApiKey


def new_key(name: str, scopes: Collection[Scope], store_ids: Collection[str], now: int, valid_for: int) -> NewKey:
    """Make a random key. Times are in milliseconds: it is valid from ``now`` for the duration ``valid_for``."""
    key_id = secrets.token_hex(_ID_BYTES)
    text = f"lk_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    key = ApiKey(key_id, name, hash_of(text), frozenset(scopes), frozenset(store_ids), now, now + valid_for)
    return NewKey(text, key)


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def key_id_of(text: str) -> str | None:
    """The id in the text of a key; None if the text is no API key."""
    match = _TEXT.fullmatch(text)
    return match[1] if match else None
