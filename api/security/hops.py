"""The identity of an instance in the requests that it forwards: a signed JWT that is valid once and for seconds.

claim   meaning
iss     URL of the instance that forwards
aud     URL of the instance that shall receive the request
req     the request: see HopRequest
body    SHA-256 of the body, in hexadecimal digits; absent without a body
jti     random, so that the receiver can refuse a second use
sub, scope, store, card   the caller of the request
"""

import hmac
import secrets
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from fastapi import HTTPException
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from joserfc.jwt import JWTClaimsRegistry
from starlette.types import Message, Receive

from api.security.caller import Caller, instance
from api.security.problems import ForwardRefused
from services.api_keys.keys import scopes_of
from services.secret_files import create

log = structlog.get_logger(__name__)

HOP = "Loyalty-Hop"
"""A request of an instance has it: the identity of the instance."""

LIFETIME_SECONDS = 10
"""Time for the way to the receiver, and for the difference between the clocks of two machines."""

_NO_BODY = sha256().hexdigest()
_ALGORITHM = "HS256"
_LOOK_AGAIN_SECONDS = 1.0
_SHORTEST_SECRET = 32


class InstanceSecretError(RuntimeError):
    """The file of the secret has no usable secret. The message names the file."""


class InstanceSecrets:
    """The secrets of the group, one in each line of a file. The first one signs, and all of them verify.

    To rotate: append the new secret on every instance, then move it to the first line, then remove the old one. The
    file is read again when it changes, so no instance must be restarted.
    """

    def __init__(self, file: Path) -> None:
        """Read the secrets. Create the file with a random secret if it is missing. Raises InstanceSecretError."""
        self._file = file
        self._looked_time = 0.0
        self._modified = 0
        self._keys: dict[str, OctKey] = {}
        try:
            if not file.exists():
                create(file, secrets.token_urlsafe(_SHORTEST_SECRET).encode() + b"\n")
            self._read()
        except OSError as error:
            raise InstanceSecretError(f"cannot use {file}: {error.strerror}") from error
        self._looked_time = time.monotonic()

    def signing(self) -> tuple[str, OctKey]:
        """The id of the first secret, and the secret."""
        self._look_again()
        return next(iter(self._keys.items()))

    def verifying(self, key_id: object) -> OctKey | None:
        self._look_again()
        return self._keys.get(str(key_id))

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
        lines = [line.strip() for line in self._file.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not lines or min(map(len, lines)) < _SHORTEST_SECRET:
            raise InstanceSecretError(
                f"{self._file} must have a secret of at least {_SHORTEST_SECRET} random characters in each line"
            )
        self._keys = {sha256(b"id of " + line.encode()).hexdigest()[:16]: OctKey.import_key(line) for line in lines}
        self._modified = modified


class HopRequest(NamedTuple):
    """What the signature covers besides the body.

    Attributes:
        path: path and query as they are sent.
        role: the value of Loyalty-Forwarded-To: how the receiver reads its copy; empty without the header.
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
        """Receive the body, and refuse it at its end if it is not the signed one."""
        digest = sha256()

        async def receive_checked() -> Message:
            message = await receive()
            digest.update(message.get("body", b""))
            if not message.get("more_body") and not hmac.compare_digest(digest.hexdigest(), self.body_digest):
                # FastAPI turns other exceptions inside a body into 400. The response comes from the cause.
                raise HTTPException(ForwardRefused.status) from ForwardRefused()
            return message

        return receive_checked


class Hops:
    """Signs the requests that this instance forwards, and verifies those that it receives."""

    def __init__(self, url: str, instance_secrets: InstanceSecrets) -> None:
        self._url = url
        self._secrets = instance_secrets
        self._started = time.time()
        self._used: dict[str, float] = {}
        self._claims = JWTClaimsRegistry(
            aud={"essential": True, "value": url}, exp={"essential": True}, leeway=LIFETIME_SECONDS
        )

    def sign(self, caller: Caller | None, target: str, request: HopRequest, content: bytes | None = None) -> str:
        """The identity for one request.

        Args:
            caller: for whom this instance asks; None: for itself.
            target: URL of the receiver.
            content: the body of the request.
        """
        key_id, key = self._secrets.signing()
        caller = caller or instance(self._url)
        now = time.time()
        claims: dict[str, Any] = {
            "iss": self._url,
            "aud": target,
            "iat": now,
            "exp": now + LIFETIME_SECONDS,
            "jti": secrets.token_urlsafe(16),
            "req": request,
            "sub": caller.name,
            "scope": sorted(caller.scopes),
        }
        if content:
            claims["body"] = sha256(content).hexdigest()
        if caller.store_ids is not None:
            claims["store"] = sorted(caller.store_ids)
        if caller.card is not None:
            claims["card"] = caller.card
        return jwt.encode({"alg": _ALGORITHM, "kid": key_id}, claims, key)

    def verify(self, text: str, request: HopRequest) -> Hop:
        """The caller behind a forwarded request. Raises ForwardRefused."""
        try:
            claims = self._claims_of(text)
        except (JoseError, ValueError, TypeError) as error:
            log.warning("a forwarded request was refused", error=type(error).__name__)
            raise ForwardRefused from error
        if claims["req"] != list(request):
            raise ForwardRefused
        self._use(claims["jti"], claims["iat"], claims["exp"])
        stores = claims.get("store")
        caller = Caller(
            claims["sub"],
            scopes_of(claims["scope"]),
            None if stores is None else frozenset(stores),
            claims.get("card"),
            is_forwarded=True,
        )
        return Hop(caller, claims.get("body", _NO_BODY))

    def _claims_of(self, text: str) -> dict[str, Any]:
        def key_of(token: Any) -> OctKey:
            key = self._secrets.verifying(token.headers().get("kid"))
            if key is None:
                raise ValueError("unknown secret")
            return key

        claims = jwt.decode(text, key_of, algorithms=[_ALGORITHM]).claims
        self._claims.validate(claims)
        return claims

    def _use(self, identity: str, issued: float, expires: float) -> None:
        """Note the use of an identity. Raises ForwardRefused for a second use, also one before this process."""
        now = time.time()
        # They are in the order of their use, so nearly in the order of their end.
        while self._used and self._used[oldest := next(iter(self._used))] <= now:
            del self._used[oldest]
        if identity in self._used or issued < self._started:
            raise ForwardRefused
        self._used[identity] = expires + LIFETIME_SECONDS
