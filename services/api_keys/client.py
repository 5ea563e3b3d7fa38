"""Sends requests to the API with an API key."""

from pathlib import Path
from urllib.request import OpenerDirector, ProxyHandler, build_opener

from services.settings import password_in


def opener(key_file: Path | None) -> OpenerDirector:
    """Opens URLs of the API.

    Args:
        key_file: has the API key; None: the API needs no credentials.
    """
    # The API is in the same network, so the proxy of the environment is not used.
    found = build_opener(ProxyHandler({}))
    if key_file:
        found.addheaders.append(("Authorization", f"Bearer {password_in(key_file)}"))
    return found
