"""Pseudonyms of customers: a keyed hash, so that nobody without the key finds a card by trying all that there can be.

A plain or salted hash of a card number is undone by a list of all card numbers; EDPB Guidelines 01/2025 ask for a
secret of high entropy that is kept apart from the data. The data stay personal data for whoever has the key.
"""

import base64
import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

KEY_BYTES = 32
_VERSION = "p1"
"""Goes in front, so that another way of making pseudonyms can be told from this one."""


class PseudonymKeyError(RuntimeError):
    """The key file holds no key; the message names it."""


class Pseudonyms:
    """Makes the pseudonyms of one key.

    Attributes:
        key_id: names the key without telling it, so that data can say which one they were written with.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        # Longer than any card that a till may send, so it is no customer's pseudonym.
        self.key_id = self.of("the id of this key " + "-" * 128)

    def of(self, card: str) -> str:
        """The pseudonym of a card: HMAC-SHA256 in base 32, 55 characters; always the same for the same card and key."""
        digest = hmac.digest(self._key, card.encode(), hashlib.sha256)
        return f"{_VERSION}-{base64.b32encode(digest).decode().rstrip('=').lower()}"


def pseudonyms(key_file: Path) -> Pseudonyms:
    """Pseudonyms under the key of a file, which is made if it is missing: 32 random bytes, for its owner alone.

    Of several processes that make it at once, all get the same one. Raises PseudonymKeyError, OSError.
    """
    try:
        key = key_file.read_bytes()
    except FileNotFoundError:
        _create(key_file)
        key = key_file.read_bytes()
    if len(key) != KEY_BYTES:
        raise PseudonymKeyError(f"{key_file} is no key: it has {len(key)} bytes, not {KEY_BYTES}")
    return Pseudonyms(key)


def _create(key_file: Path) -> None:
    key_file.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp's files are for their owner alone; a link appears with all of its content, and only if nothing is there.
    handle, name = tempfile.mkstemp(dir=key_file.parent, prefix=f".{key_file.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        os.link(name, key_file)
    except FileExistsError:
        return
    finally:
        Path(name).unlink()
