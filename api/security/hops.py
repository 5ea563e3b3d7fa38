"""The identity of an instance in requests that it forwards: signed claims that are valid once.

The text has three parts with dots between them: the id of a secret, the claims, and their HMAC with SHA-256. Decision
51 says why it is not a JWT.

claim   meaning
iss     URL of the instance that forwards
aud     URL of the instance that receives the request
iat     time of the signature, in seconds since the epoch
req     the fields of HopRequest, as a list
body    SHA-256 of the body, in hexadecimal digits; absent without a body
jti     random, so that the receiver can refuse a second use
caller  the caller of the request: its name, scopes, shops and card, as JSON in a text
"""

import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import structlog
from fastapi import HTTPException
from starlette.types import Message, Receive

from api.security.caller import Caller, instance
from api.security.problems import ForwardRefused
from services.api_keys.keys import scopes_of
from services.errors import UserError
from services.secret_files import create, lines_of

log = structlog.get_logger(__name__)

HOP = "Loyalty-Hop"
"""The header of a forwarded request with the identity of the instance."""

LIFETIME_SECONDS = 20
"""How long an identity is valid: time for the network, and for the difference between the clocks of two machines."""

_NO_BODY = sha256().hexdigest()
_LOOK_AGAIN_SECONDS = 1.0
_MOST_CALLERS = 10_000
_SHORTEST_SECRET = 32


class InstanceSecretError(UserError):
    """The file of the secret has no usable secret. The message names the file."""

    exit_status = 2


class InstanceSecrets:
    """The secrets of the group, one in each line of a file. The first one signs, and all of them verify.

    To rotate the secret: append the new one on every instance, then move it to the first line, then remove the old one.
    Each instance reads the file again when it changes, without a restart.
    """

    def __init__(self, file: Path) -> None:
        """Read the secrets. Create the file with a random secret if it is missing. Raises InstanceSecretError."""
        self._file = file
        self._looked_time = 0.0
        self._modified = 0
        self._keys: dict[str, bytes] = {}
        try:
            if not file.exists():
                create(file, secrets.token_urlsafe(_SHORTEST_SECRET).encode() + b"\n")
            self._read()
        except OSError as error:
            raise InstanceSecretError(
                f"cannot read or create {file}: {error.strerror}. "
                "Set LOYALTY_INSTANCE_SECRET_FILE to a file that this process may read or create"
            ) from error
        self._looked_time = time.monotonic()

    def signing(self) -> tuple[str, bytes]:
        """The id of the first secret, and the secret."""
        self._look_again()
        return next(iter(self._keys.items()))

    def verifying(self, key_id: str) -> bytes | None:
        """The secret with this id; None if the group does not have it."""
        self._look_again()
        return self._keys.get(key_id)

    def _look_again(self) -> None:
        if time.monotonic() - self._looked_time < _LOOK_AGAIN_SECONDS:
            return
        self._looked_time = time.monotonic()
        try:
            self._read()
        except (OSError, InstanceSecretError) as error:
            log.warning("the instance secrets cannot be read; the last ones stay in use", error=str(error))

    def _read(self) -> None:
        modified = self._file.stat().st_mtime_ns
        if modified == self._modified:
            return
        lines = lines_of(self._file)
        if not lines or min(map(len, lines)) < _SHORTEST_SECRET:
            raise InstanceSecretError(
                f"{self._file} must have a secret of at least {_SHORTEST_SECRET} random characters in each line"
            )
        self._keys = {sha256(b"id of " + line).hexdigest()[:16]: line for line in lines}
        self._modified = modified


class HopRequest(NamedTuple):
    """The parts of a request that the signature covers, besides the body.

    Attributes:
        path: the path and the query as they are sent.
        role: the value of Loyalty-Forwarded-To: the role in which the receiver reads; empty without the header.
        idempotency_key: the value of the header; empty without it.
    """

    method: str
    path: str
    role: str = ""
    idempotency_key: str = ""


class Hop(NamedTuple):
    """A verified identity: the caller of the request, and the digest that its body must have."""

    caller: Caller
    body_digest: str

    def checked(self, receive: Receive) -> Receive:
        """Receive the body. Refuse the request at the end of the body if it is not the signed one."""
        digest = sha256()

        async def receive_checked() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                return message
            digest.update(message.get("body", b""))
            if not message.get("more_body") and not hmac.compare_digest(digest.hexdigest(), self.body_digest):
                # FastAPI turns other exceptions during the read of a body into 400. The error handler makes the
                # response from the cause of the HTTPException.
                raise HTTPException(ForwardRefused.status) from ForwardRefused()
            return message

        return receive_checked


class Hops:
    """Signs the requests that this instance forwards, and verifies those that it receives."""

    def __init__(self, url: str, instance_secrets: InstanceSecrets) -> None:
        self._url = url
        self._secrets = instance_secrets
        self._started = time.monotonic()
        self._used: dict[str, float] = {}

    def sign(self, caller: Caller | None, target: str, request: HopRequest, content: bytes | None = None) -> str:
        """The identity for one request.

        Args:
            caller: the caller of the request. None: this instance itself.
            target: the URL of the receiver.
            content: the body of the request.
        """
        key_id, key = self._secrets.signing()
        caller = caller or instance(self._url)
        now = time.time()
        claims: dict[str, Any] = {
            "iss": self._url,
            "aud": target,
            "iat": now,
            "jti": secrets.token_urlsafe(16),
            "req": list(request),
            "caller": _text_of(caller),
        }
        if content:
            claims["body"] = sha256(content).hexdigest()
        text = urlsafe_b64encode(orjson.dumps(claims))
        return f"{key_id}.{text.decode()}.{_signature(key, text)}"

    def verify(self, text: str, request: HopRequest) -> Hop:
        """The caller of a forwarded request. Raises ForwardRefused."""
        claims = self._claims_of(text)
        if claims is None or claims["aud"] != self._url or abs(claims["iat"] - time.time()) > LIFETIME_SECONDS:
            log.warning(
                "a forwarded request was refused",
                hint="compare LOYALTY_INSTANCE_SECRET_FILE, the URLs and the clocks of the instances",
            )
            raise ForwardRefused
        if claims["req"] != list(request):
            raise ForwardRefused
        self._refuse_second_use(claims["jti"], claims["iat"])
        return Hop(_caller_of(claims["caller"]), claims.get("body", _NO_BODY))

    def _claims_of(self, text: str) -> dict[str, Any] | None:
        """The claims of an instance of this group; None if the signature is not of a known secret."""
        key_id, _, signed = text.partition(".")
        claims, _, signature = signed.partition(".")
        key = self._secrets.verifying(key_id)
        if key is None or not hmac.compare_digest(signature.encode(), _signature(key, claims.encode()).encode()):
            return None
        found: dict[str, Any] = orjson.loads(urlsafe_b64decode(claims))
        return found

    def _refuse_second_use(self, identity: str, issued: float) -> None:
        """Remember the use of an identity.

        Raises ForwardRefused for a second use, and if an earlier process of this instance may have seen the identity.
        """
        now = time.time()
        # The clock may have been corrected since the start, so its time at the start does not count.
        start = now - (time.monotonic() - self._started)
        # The identities are in the order of their use, which is almost the order of their expiry.
        while self._used and self._used[oldest := next(iter(self._used))] < now:
            del self._used[oldest]
        if identity in self._used or issued < start:
            raise ForwardRefused
        self._used[identity] = issued + LIFETIME_SECONDS


@lru_cache(_MOST_CALLERS)
def _text_of(caller: Caller) -> str:
    stores = None if caller.store_ids is None else sorted(caller.store_ids)
    return orjson.dumps([caller.name, sorted(caller.scopes), stores, caller.card]).decode()


@lru_cache(_MOST_CALLERS)
def _caller_of(text: str) -> Caller:
    name, scopes, stores, card = orjson.loads(text)
    return Caller(name, scopes_of(scopes), None if stores is None else frozenset(stores), card, is_forwarded=True)


def _signature(key: bytes, claims: bytes) -> str:
    return hmac.digest(key, claims, "sha256").hex()
