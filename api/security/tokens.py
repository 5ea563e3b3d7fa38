"""Bearer tokens of an OpenID Connect provider: signed JWTs (RFC 7519) with the claims of RFC 9068.

claim   meaning
iss     must be the issuer of the settings
aud     must contain the audience of the settings
exp     must be in the future, and not after the year 9999
sub     the caller. The actor of its commands is "token:" and this name
scope   the scopes, separated by blanks, or a list of them
store   optional: one StoreID or a list. The token is limited to these shops
card    optional: one CustomerCardNo. The token is limited to this card
"""

import time
import warnings
from typing import Any, NamedTuple

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError, SecurityWarning
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry

from api.schemas.commands import LONGEST_ACTOR
from api.security import issuer_keys
from api.security.caller import Caller
from api.security.issuer_keys import IssuerKeys
from api.security.problems import Unauthenticated
from services.api_keys.keys import scopes_of
from services.domain.entries import BEARER_ACTOR
from services.domain.formats import LAST_TIME

ALGORITHMS = ("RS256", "ES256", "EdDSA", "Ed25519")
"""Ed25519 is the newer name of EdDSA with that curve (RFC 9864)."""

_LARGEST_TOKEN = 8 * 1024
_MOST_KNOWN = 10_000
_LEEWAY_SECONDS = 5


class _VerifiedToken(NamedTuple):
    """A verified token.

    Attributes:
        until: when the token must be verified again: at its expiry, or earlier. A verification also reads the keys of
            the issuer again if they are old. So a key that the issuer has removed is refused, even if no caller sends
            a new token.
        keys: the keys that verified it.
    """

    caller: Caller
    until: float
    keys: KeySet


class TokenVerifier:
    """Verifies tokens, and remembers those that are valid until they expire or the issuer changes its keys."""

    def __init__(self, issuer: str, audience: str, keys: IssuerKeys) -> None:
        self._keys = keys
        self._known: dict[bytes, _VerifiedToken] = {}
        self._claims = JWTClaimsRegistry(
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
        )

    def verified_caller(self, authorization: bytes) -> Caller | None:
        """The caller of a header Authorization whose token was verified before. None: verify the token.

        Each read calls this, so it must be fast. It looks up the bytes of the header without decoding them.
        """
        found = self._known.get(authorization)
        if found is None or found.until <= time.time() or found.keys is not self._keys.current:
            return None
        return found.caller

    def accepted_before(self, text: str) -> bool:
        """Whether the token was valid before. It may have ended since."""
        return _header(text) in self._known

    async def caller_of(self, text: str) -> Caller:
        """The caller of a token, known or not. Raises what ``verify`` raises."""
        return self.verified_caller(_header(text)) or await self.verify(text)

    async def verify(self, text: str) -> Caller:
        """The caller of a token. Raises Unauthenticated, and KeysUnavailable while there are no keys to verify it."""
        if len(text) > _LARGEST_TOKEN:
            raise Unauthenticated("The token is too long")
        keys = await self._keys.get()
        try:
            claims = _claims_of(text, keys)
        except InvalidKeyIdError:
            # The issuer may have a new key.
            await self._keys.read_again()
            keys = await self._keys.get()
            try:
                claims = _claims_of(text, keys)
            except InvalidKeyIdError as error:
                raise Unauthenticated("The issuer does not have the key of the token") from error
        try:
            self._claims.validate(claims)
        except JoseError as error:
            # The description names the claim, and contains no value of the token.
            raise Unauthenticated(f"The token is not valid: {error.description}") from error
        if claims["exp"] > LAST_TIME // 1000:  # A float cannot hold every integer.
            raise Unauthenticated("The claim exp of the token is after the year 9999")
        caller = _caller_of(claims)
        while len(self._known) >= _MOST_KNOWN:
            self._known.pop(next(iter(self._known)))
        until = min(float(claims["exp"]), time.time() + issuer_keys.REFRESH_SECONDS)
        self._known[_header(text)] = _VerifiedToken(caller, until, keys)
        return caller


def _header(text: str) -> bytes:
    return b"Bearer " + text.encode("latin-1")


def _claims_of(text: str, keys: KeySet) -> dict[str, Any]:
    """The claims of a token with a valid signature. Raises InvalidKeyIdError and Unauthenticated."""
    try:
        with warnings.catch_warnings():
            # Providers still use the older name EdDSA.
            warnings.simplefilter("ignore", SecurityWarning)
            return jwt.decode(text, keys, algorithms=ALGORITHMS).claims
    except InvalidKeyIdError:
        raise
    except (JoseError, ValueError, TypeError) as error:
        raise Unauthenticated("The token has no valid signature") from error


def _caller_of(claims: dict[str, Any]) -> Caller:
    name = BEARER_ACTOR + claims["sub"]
    scope, stores, card = claims.get("scope", ""), claims.get("store"), claims.get("card")
    scopes = scope.split() if isinstance(scope, str) else scope
    stores = [stores] if isinstance(stores, str) else stores
    if (
        len(name) > LONGEST_ACTOR
        or not _are_texts([name])
        or not _are_texts(scopes)
        or not (stores is None or _are_texts(stores))
        or not (card is None or _are_texts([card]))
        # Some issuers write null if the user has no such attribute.
        or None in (claims.get("store", ""), claims.get("card", ""))
    ):
        # Refuse the token, because an unreadable limit must not become no limit.
        raise Unauthenticated("The claim sub, scope, store or card of the token is null or has an unknown form")
    return Caller(name, scopes_of(scopes), None if stores is None else frozenset(stores), card)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each.isprintable() for each in value)
