"""``python -m infra.docker.healthy URL [TEXT]``: the health check of images without curl.

The exit status is 0 if the URL responds with success and a line of the body begins with the text, and 1 otherwise.
"""

import sys
import urllib.request
from http.client import HTTPException

_SECONDS = 5.0


def is_healthy(url: str, text: str = "") -> bool:
    """Whether the URL responds with success and a line of its body begins with this text."""
    # Requests within one container must not use a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_SECONDS) as response:
            return f"\n{text}" in "\n" + response.read().decode("utf-8", "replace")
    except (OSError, HTTPException):  # refused, timed out, or not successful
        return False


if __name__ == "__main__":
    sys.exit(0 if is_healthy(*sys.argv[1:]) else 1)
