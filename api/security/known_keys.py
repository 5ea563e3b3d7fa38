"""Finds the caller of an API key in the global store of the topic api-keys."""

import orjson

from api.security.caller import Caller
from api.security.problems import KeysUnavailable, Unauthenticated
from services import clock
from services.api_keys.keys import ApiKey, hash_of, key_id_of
from services.domain.entries import KEY_ACTOR
from services.state_stores.contract import StoreError
from services.state_stores.definition import VersionedValue
from services.state_stores.store import NotServingError, StateStore


class KnownKeys:
    """Reads the store at each request, so that a revocation takes effect at once."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._parsed: dict[bytes, tuple[ApiKey, Caller]] = {}
        self._accepted: dict[str, str] = {}

    def accepted_before(self, text: str) -> bool:
        """Whether this whole key was valid before. It may have been revoked since."""
        key_id = key_id_of(text)
        return key_id is not None and self._accepted.get(key_id) == hash_of(text)

    def caller_of(self, text: str) -> Caller | None:
        """The caller of a key; None if the text is no API key.

        Raises Unauthenticated for a key that is not valid, and KeysUnavailable before the store is restored.
        """
        key_id = key_id_of(text)
        if key_id is None:
            return None
        try:
            stored = self._store.get(key_id.encode())
        except (NotServingError, StoreError) as error:
            raise KeysUnavailable from error
        if stored is not None:
            key, caller = self._key_of(stored.body)
            if key.matches(text) and key.is_valid_at(clock.now()):
                self._accepted[key_id] = key.hash
                return caller
        # The reason does not tell whether the key exists.
        raise Unauthenticated("The API key is unknown, expired or revoked")

    def earliest_expiry(self) -> float | None:
        """When the first of the valid keys expires, in seconds since the epoch.

        None if no key is valid, or if this instance cannot read the keys now.
        """
        try:
            keys = self._store.serving(0).store  # a global store has one partition
            rows = keys.scan(b"", None, keys.count())
        except (NotServingError, StoreError):
            return None
        now, found = clock.now(), [self._key_of(VersionedValue.unpack(stored).body)[0] for _, stored in rows]
        expiry = min((key.expires_time for key in found if key.is_valid_at(now)), default=None)
        return None if expiry is None else expiry / 1000

    def _key_of(self, body: bytes) -> tuple[ApiKey, Caller]:
        return self._parsed.get(body) or self._parse(body)

    def _parse(self, body: bytes) -> tuple[ApiKey, Caller]:
        key = ApiKey.from_record(orjson.loads(body))
        parsed = key, Caller(KEY_ACTOR + key.key_id, key.scopes, key.store_ids or None)
        self._parsed[body] = parsed
        return parsed
