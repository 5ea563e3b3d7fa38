"""What makes two requests the same command: every instance, asked at any time, comes to the same answer."""

import hashlib
from collections.abc import Mapping
from uuid import NAMESPACE_URL, uuid5

import orjson

MAX_KEY_LENGTH = 255
"""Characters of an Idempotency-Key, as at Stripe and Talon.One."""

_NAMESPACE = uuid5(NAMESPACE_URL, "urn:retail-loyalty:command")
_HASH_DIGITS = 32


def command_id(method: str, path: str, idempotency_key: str) -> str:
    """The id of the command that a request is: a key belongs to the method and the path, percent-decoded.

    Under another path the same key is another command, so that keys of different tills and customers may be equal.
    """
    return str(uuid5(_NAMESPACE, f"{method} {path}\n{idempotency_key}"))


def request_hash(command_id: str, asked: Mapping[str, object]) -> str:
    """Tells the requests of one id apart by what they ask for (names to values that JSON knows).

    The id is part of it, so that the hash says nothing of a card to whoever does not know the key.
    """
    text = command_id.encode() + orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:_HASH_DIGITS]
