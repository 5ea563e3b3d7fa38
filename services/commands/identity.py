"""Derives the id and the hash of a command from its request. Every instance derives the same ones."""

import hashlib
from collections.abc import Mapping
from uuid import NAMESPACE_URL, uuid5

import orjson

MAX_KEY_LENGTH = 255
"""The maximum number of characters of an Idempotency-Key. Stripe and Talon.One have the same maximum."""

_NAMESPACE = uuid5(NAMESPACE_URL, "urn:retail-loyalty:command")
_HASH_DIGITS = 32


def command_id(method: str, path: str, idempotency_key: str) -> str:
    """The id of the command of a request. The path is percent-decoded.

    The id depends on method, path and key. So requests with different paths may have equal keys.
    """
    return str(uuid5(_NAMESPACE, f"{method} {path}\n{idempotency_key}"))


def request_hash(command_id: str, request: Mapping[str, object]) -> str:
    """A hash that differs between different requests with the same command id.

    Records of earlier releases have this hash. New records have ``keyed_hash``.

    Args:
        request: names and JSON values of the request.
    """
    text = command_id.encode() + orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:_HASH_DIGITS]


def keyed_hash(request_hash: str, idempotency_key: str) -> str:
    """The hash of a request and its Idempotency-Key, for records.

    No record contains the key. So a reader of the records cannot find the card of a request by computing the hashes of
    all cards.
    """
    return hashlib.sha256(f"{request_hash}\n{idempotency_key}".encode()).hexdigest()[:_HASH_DIGITS]


def without_actor(request: Mapping[str, object]) -> dict[str, object]:
    """The fields of a request that its hash has if credentials prove the actor."""
    return {name: value for name, value in request.items() if name != "actor"}


def possible_hashes(command_id: str, request: Mapping[str, object], idempotency_key: str) -> set[str]:
    """All hashes that the record of a request can have.

    An instance wrote the record with its settings of that time: with or without credentials, and for release 0.1 or
    not. A repetition must find the record after a change of these settings.
    """
    hashes = {request_hash(command_id, fields) for fields in (request, without_actor(request))}
    return hashes | {keyed_hash(each, idempotency_key) for each in hashes}
