"""Sends requests to the API with an API key."""

from pathlib import Path
from ssl import SSLContext
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from services.settings import password_in


def opener(key_file: Path | None, tls: SSLContext | None = None) -> OpenerDirector:
    """Opens URLs of the API.

    Args:
        key_file: has the API key; None: the API needs no credentials.
        tls: None: trust the authorities of the system.
    """
    # The API is in the same network, so the proxy of the environment is not used.
    found = build_opener(ProxyHandler({}), HTTPSHandler(context=tls))
    if key_file:
        found.addheaders.append(("Authorization", f"Bearer {password_in(key_file)}"))
    return found
