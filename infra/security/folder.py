"""The folder of a deployment's certificates and passwords: ``python -m infra.security`` makes what is missing in it."""

import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.security.certificates import Authority
from schemas.access import USERS

LOCAL_HOSTS = ("kafka", "localhost", "127.0.0.1")
"""How containers and this machine know the broker of the compose files."""

_SECRET, _SHARED = 0o600, 0o644
# Containers have another user than the one whose files these are. So the folder keeps strangers of this machine out,
# and whoever is handed a single file of it can read that one.
_FOLDER = 0o700


@dataclass(frozen=True, slots=True)
class SecurityFolder:
    """Where everything is.

    Attributes:
        directory: holds it all; nothing of it belongs into a repository or an image.
    """

    directory: Path

    @property
    def authority(self) -> Path:
        """The certificate that clients and brokers trust."""
        return self.directory / "ca.pem"

    @property
    def authority_key(self) -> Path:
        """Signs certificates; no process that runs needs it."""
        return self.directory / "ca.key"

    @property
    def broker(self) -> Path:
        """The broker's key and certificate."""
        return self.directory / "broker.pem"

    @property
    def passwords(self) -> Path:
        return self.directory / "passwords"

    def password(self, user: str) -> Path:
        return self.passwords / user

    def complete(self, hosts: Sequence[str]) -> list[Path]:
        """Make what is missing, and the broker's certificate anew if it lacks a host or ends soon; what was made."""
        for folder in (self.directory, self.passwords):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_FOLDER)
        made = []
        if not self.authority_key.exists() or not self.authority.exists():
            new = Authority.new()
            made += [_write(self.authority_key, new.key_pem(), _SECRET)]
            made += [_write(self.authority, new.certificate_pem(), _SHARED)]
        authority = Authority.load(self.authority.read_bytes(), self.authority_key.read_bytes())
        if not self.broker.exists() or not authority.has_signed(self.broker.read_bytes(), hosts):
            made += [_write(self.broker, authority.broker_pem(hosts), _SHARED)]
        missing = [user for user in USERS if not self.password(user).exists()]
        return made + [_write(self.password(user), secrets.token_urlsafe(32).encode(), _SHARED) for user in missing]


def _write(path: Path, content: bytes, mode: int) -> Path:
    """Put a file in place at once, never readable by more than it is to be."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(descriptor, mode)
    return Path(name).replace(path)
