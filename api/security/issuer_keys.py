"""The public keys of the token issuer: a JWK set (RFC 7517) from a file or a URL, kept in memory."""

import asyncio
import time
from pathlib import Path

import anyio
import httpx
import orjson
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet

from api.security.problems import KeysUnavailable

log = structlog.get_logger(__name__)

REFRESH_SECONDS = 300.0
"""The keys are read again after this time. From then on, a key that the issuer has removed is refused."""

RETRY_SECONDS = 10.0
"""The shortest time between two reads, also if many tokens name unknown keys."""

_TIMEOUT_SECONDS = 5.0
_LARGEST_SET = 2**20


class IssuerKeys:
    """Reads the keys when they are needed, and keeps the last ones while the issuer does not answer.

    Args:
        location: the URL of the JWK set (http:// or https://), or the path of a file.

    Attributes:
        current: the keys; None before the first read. It is another object only if the issuer has changed them.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._content = b""
        self._attempt_time = -RETRY_SECONDS
        self._reading = asyncio.Lock()
        self._refresh: asyncio.Task[None] | None = None
        self.current: KeySet | None = None

    async def get(self) -> KeySet:
        """The keys. Old keys are read again in the background. Raises KeysUnavailable if there are no keys yet."""
        if self.current is None:
            await self.read_again()
        elif time.monotonic() - self._attempt_time > REFRESH_SECONDS and (
            self._refresh is None or self._refresh.done()
        ):
            self._refresh = asyncio.create_task(self.read_again())
        if self.current is None:
            raise KeysUnavailable
        return self.current

    async def read_again(self) -> None:
        """Read the keys now, unless the last attempt is newer than RETRY_SECONDS. An error keeps the old keys."""
        async with self._reading:
            if time.monotonic() - self._attempt_time < RETRY_SECONDS:
                return
            self._attempt_time = time.monotonic()
            try:
                content = await self._read()
                if content != self._content:
                    self.current, self._content = self._key_set(content), content
            except (OSError, httpx.HTTPError, JoseError, ValueError, TypeError, KeyError) as error:
                reason = str(error) or type(error).__name__
                log.warning(
                    "the keys of the token issuer cannot be read; earlier ones stay in use",
                    keys=self._location,
                    error=reason,
                )

    async def _read(self) -> bytes:
        if not self._location.startswith(("http://", "https://")):
            return await asyncio.to_thread(Path(self._location).read_bytes)
        content = b""
        # The timeout of httpx applies to each part only.
        with anyio.fail_after(_TIMEOUT_SECONDS):
            async with (
                httpx.AsyncClient(follow_redirects=False) as client,
                client.stream("GET", self._location) as response,
            ):
                async for part in response.raise_for_status().aiter_bytes():
                    content += part
                    if len(content) > _LARGEST_SET:
                        raise ValueError(f"the answer is larger than {_LARGEST_SET} bytes")
        return content

    def _key_set(self, content: bytes) -> KeySet:
        """The public keys of a JWK set for signatures. Raises ValueError if there are none.

        Ignores symmetric keys, because everybody who reads the set could sign tokens with them. Ignores keys of an
        unknown form (RFC 7517, section 5).
        """
        keys: list[Key] = []
        ignored = []
        for key in orjson.loads(content)["keys"]:
            try:
                if key["kty"] != "oct" and key.get("use", "sig") == "sig":
                    keys += KeySet.import_key_set({"keys": [key]})
            except (JoseError, ValueError, TypeError, KeyError, AttributeError):
                ignored.append(key.get("kid") if isinstance(key, dict) else None)
        if ignored:
            log.warning("keys of an unknown form are ignored", keys=self._location, kid=ignored)
        if not keys:
            raise ValueError("the set has no key that verifies signatures")
        return KeySet(keys)
