"""The folder with the certificates and passwords of a deployment."""

import errno
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from infra.security.certificates import Authority, hosts_of, is_signed
from schemas.access import USERS
from services.messaging.access import user_of
from services.settings import Settings

LOCAL_HOSTS = ("kafka", "localhost", "127.0.0.1")
"""The names of the broker of the compose files."""

# Containers run as another user and must read the shared files. The permissions of the folder exclude other users of
# this machine.
_SECRET, _SHARED, _FOLDER = 0o600, 0o644, 0o700


@dataclass(frozen=True, slots=True)
class SecurityFolder:
    """The paths of all certificates and passwords.

    Attributes:
        directory: the folder. It must not be part of a repository or an image.
    """

    directory: Path

    @property
    def authority(self) -> Path:
        """The certificate of the authority."""
        return self.directory / "ca.pem"

    @property
    def authority_key(self) -> Path:
        """The key of the authority. No running process needs it."""
        return self.directory / "ca.key"

    @property
    def broker(self) -> Path:
        """The key and certificate of the broker."""
        return self.directory / "broker.pem"

    @property
    def passwords(self) -> Path:
        return self.directory / "passwords"

    def password(self, user: str) -> Path:
        return self.passwords / user

    def settings_of(self, user: str, settings: Settings) -> Settings:
        """The settings with the credentials of a user."""
        secured = {
            "kafka_security_protocol": "SASL_SSL",
            "kafka_ssl_ca_location": self.authority,
            "kafka_sasl_password_file": self.password(user),
            "kafka_sasl_username": user_of(user, settings),
        }
        return settings.model_copy(update=secured)

    def complete(self, hosts: Sequence[str] = ()) -> list[Path]:
        """Create missing files, and replace a broker certificate that lacks a host or expires soon. Returns new files.

        Args:
            hosts: names or addresses that the broker's certificate must have. It keeps the names that it already has.
                The default of a first certificate is LOCAL_HOSTS.

        Raises FileNotFoundError if a certificate must be signed and only the key of the authority is missing. Raises
        ValueError for a wrong host. In both cases it changes no file.
        """
        for folder in (self.directory, self.passwords):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_FOLDER)
        created = self._signed_files(hosts)
        missing = [user for user in USERS if not self.password(user).exists()]
        return created + [_write(self.password(user), secrets.token_urlsafe(32).encode(), _SHARED) for user in missing]

    def _signed_files(self, hosts: Sequence[str]) -> list[Path]:
        """Create the authority and the broker's certificate if necessary. Returns new files."""
        broker = self.broker.read_bytes() if self.broker.exists() else None
        named = list(dict.fromkeys([*(hosts_of(broker) if broker else ()), *hosts])) or LOCAL_HOSTS
        if not self.authority.exists():
            authority = Authority.new()
            pem = authority.broker_pem(named)  # raises for a wrong host, so before any file is written
            return [
                _write(self.authority_key, authority.key_pem(), _SECRET),
                _write(self.authority, authority.certificate_pem(), _SHARED),
                _write(self.broker, pem, _SHARED),
            ]
        certificate = self.authority.read_bytes()
        if broker and is_signed(broker, x509.load_pem_x509_certificate(certificate), named):
            return []
        if not self.authority_key.exists():
            # Do not create a new authority: existing clients would not trust its certificates.
            problem = (
                f"is missing and must sign {self.broker.name}: put it back, or delete {self.authority} to make "
                "a new authority and give its certificate to every client"
            )
            raise FileNotFoundError(errno.ENOENT, problem, str(self.authority_key))
        authority = Authority.load(certificate, self.authority_key.read_bytes())
        return [_write(self.broker, authority.broker_pem(named), _SHARED)]


def _write(path: Path, content: bytes, mode: int) -> Path:
    """Write a file in one step. It never has more permissions than ``mode``."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(descriptor, mode)
    return Path(name).replace(path)
