"""An issuer of tokens: keys and a JWK set in a file."""

import json
import time
import warnings
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, Key, KeyParameters, KeySet, OKPKey, RSAKey

ISSUER, AUDIENCE = "https://issuer.example", "retail-loyalty"


def new_key(algorithm: str, key_id: str) -> Key:
    parameters: KeyParameters = {"kid": key_id, "use": "sig"}
    match algorithm:
        case "RS256":
            return RSAKey.generate_key(2048, parameters)
        case "ES256":
            return ECKey.generate_key("P-256", parameters)
        case _:
            return OKPKey.generate_key("Ed25519", parameters)


class Issuer:
    """Issues tokens with its first key, and publishes all its public keys in a file.

    Attributes:
        keys: the keys and their algorithms.
    """

    def __init__(self, file: Path, algorithm: str = "ES256") -> None:
        self.file = file
        self.keys = [(algorithm, new_key(algorithm, "key-1"))]
        self.publish()

    def publish(self) -> None:
        self.file.write_text(json.dumps(KeySet([key for _, key in self.keys]).as_dict(private=False)))

    def rotate(self, algorithm: str = "ES256") -> None:
        """Sign with a new key, and publish it beside the old one."""
        self.keys.insert(0, (algorithm, new_key(algorithm, f"key-{len(self.keys) + 1}")))
        self.publish()

    def token(self, scope: str = "balance:read", **claims: Any) -> str:
        """A token that is valid for one minute. Leaves out claims that are ``...``."""
        algorithm, key = self.keys[0]
        now = int(time.time())
        given = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 60, "sub": "anna", "scope": scope, **claims}
        present = {name: value for name, value in given.items() if value is not ...}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            return jwt.encode({"alg": algorithm, "kid": key.kid}, present, key, algorithms=[algorithm])
