"""TLS of the API: the certificate of an instance, and the authorities that its clients trust."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from services.errors import SettingsError
from services.settings import Settings

log = structlog.get_logger(__name__)


class Certificate:
    """The certificate of an instance. ``renew`` reads changed files again, so that no instance must be restarted."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self._contexts: list[ssl.SSLContext] = []
        self._seen = self._modified()

    def serve(self, context: ssl.SSLContext, client_authorities: Path | None = None) -> ssl.SSLContext:
        """Use the certificate in a context, now and after each renewal. Raises SettingsError.

        Args:
            client_authorities: PEM file. Clients then need a certificate that one of these authorities has signed.
        """
        with _named(*self._files):
            context.load_cert_chain(*self._files)
        if client_authorities:
            with _named(client_authorities):
                context.load_verify_locations(client_authorities)
            context.verify_mode = ssl.CERT_REQUIRED
        self._contexts.append(context)
        return context

    def renew(self) -> None:
        """Load changed files again. The old certificate stays in use while they cannot be read or do not match."""
        modified = self._modified()
        if modified == self._seen:
            return
        self._seen = modified
        try:
            # A context whose certificate and key do not match would refuse all clients.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
            for context in self._contexts:
                context.load_cert_chain(*self._files)
        except OSError as error:  # ssl.SSLError is one
            log.warning("the new certificate cannot be used; the old one stays in use", error=str(error))
        else:
            log.info("the certificate was loaded again", file=str(self._files[0]))

    def _modified(self) -> list[int]:
        return [_modified_time(file) for file in self._files]


def _modified_time(file: Path) -> int:
    """In nanoseconds; 0 while the file cannot be examined, for example because its folder is private for a moment."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


@contextmanager
def _named(*files: Path) -> Iterator[None]:
    """Add the names of the files to errors of a context, which do not name them."""
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(f"cannot use {' with '.join(map(str, files))} as PEM: {error}") from error


def certificate_of(settings: Settings) -> Certificate | None:
    """The certificate of the settings; None without TLS."""
    if settings.api_certificate_file and settings.api_certificate_key_file:
        return Certificate(settings.api_certificate_file, settings.api_certificate_key_file)
    return None


def client_context(settings: Settings, certificate: Certificate | None = None) -> ssl.SSLContext:
    """A context that trusts the authorities of the settings, or those of the system. Raises SettingsError.

    Args:
        certificate: the certificate for servers that ask for one. None: the files of the settings, as they are now.
    """
    authorities = [settings.api_ca_file] if settings.api_ca_file else []
    with _named(*authorities):
        context = ssl.create_default_context(cafile=settings.api_ca_file)
    if certificate := certificate or certificate_of(settings):
        certificate.serve(context)
    return context
