"""Pseudonyms of customers: keyed hashes of card numbers.

With a list of all card numbers, anybody can reverse a plain or salted hash. So EDPB Guidelines 01/2025 require a secret
of high entropy that is stored apart from the data. For everybody who has the key, the data are still personal data.
"""

import base64
import hashlib
import hmac
import secrets
from pathlib import Path

from services.errors import SettingsError
from services.secret_files import create

KEY_BYTES = 32
_VERSION = "p1"
"""The prefix of all pseudonyms. Another algorithm will get another prefix."""


class Pseudonyms:
    """Computes pseudonyms with one key.

    Attributes:
        key_id: identifies the key without revealing it. Data name the key with which they were written.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        # This text is longer than any valid card, so the id is not the pseudonym of a customer.
        self.key_id = self.of("the id of this key " + "-" * 128)

    def of(self, card: str) -> str:
        """Returns the HMAC-SHA256 of a card in base 32: 55 characters, always the same for a card and a key."""
        digest = hmac.digest(self._key, card.encode(), hashlib.sha256)
        return f"{_VERSION}-{base64.b32encode(digest).decode().rstrip('=').lower()}"


def pseudonyms(key_file: Path) -> Pseudonyms:
    """Reads the key from a file, and creates the file if it is missing: 32 random bytes that only the owner can read.

    Several processes that create it at the same time get the same key. Raises SettingsError.
    """
    try:
        key = _read_or_create(key_file)
    except OSError as error:
        raise SettingsError(
            f"cannot read or create {key_file}: {error.strerror}. Set LOYALTY_PSEUDONYM_KEY_FILE "
            "(LOYALTY_CUSTOMER_KEY_FILE for customer keys) to a file that all processes share and this user may read"
        ) from error
    if len(key) != KEY_BYTES:
        raise SettingsError(
            f"{key_file} is not a key: it has {len(key)} bytes, not {KEY_BYTES}. Restore it from a backup"
        )
    return Pseudonyms(key)


def existing_pseudonyms(key_file: Path, risk: str) -> Pseudonyms:
    """Reads the key from a file, and never creates one. Raises SettingsError.

    Args:
        risk: what would happen with another key, for the error.
    """
    if not key_file.exists():
        raise SettingsError(
            f"{key_file} does not exist: set LOYALTY_PSEUDONYM_KEY_FILE to the key file of the pipeline. With another "
            f"key, {risk}"
        )
    return pseudonyms(key_file)


def _read_or_create(key_file: Path) -> bytes:
    try:
        return key_file.read_bytes()
    except FileNotFoundError:
        create(key_file, secrets.token_bytes(KEY_BYTES))
        return key_file.read_bytes()
