"""Sends requests with a key to the processes of the system."""

from pathlib import Path
from ssl import SSLContext
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from services.secret_files import lines_of


def authorization(key_file: Path | None) -> dict[str, str]:
    """The header with the key in the first line of a file. Empty if the file cannot be read or has no key in ASCII."""
    try:
        return {"Authorization": f"Bearer {lines_of(key_file)[0].decode('ascii')}"} if key_file else {}
    except (OSError, IndexError, UnicodeDecodeError):
        return {}


class _NoRedirects(HTTPRedirectHandler):
    """A redirect is an error. Otherwise the opener would send the key to a server that the operator has not named."""

    def redirect_request(self, *_: object) -> None:
        return None


def opener(key_file: Path | None, tls: SSLContext | None = None) -> OpenerDirector:
    """An opener of URLs of one process. Its requests have the key in the file.

    Args:
        tls: the TLS context. None: trust the authorities of the system.
    """
    # The process is in the same network, so the opener ignores the proxies of the environment.
    found = build_opener(ProxyHandler({}), HTTPSHandler(context=tls), _NoRedirects)
    found.addheaders += authorization(key_file).items()
    return found
