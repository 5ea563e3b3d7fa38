"""``python -m infra.docker.healthy URL``: the health check of images without curl.

The exit status is 0 if the URL responds with success, and 1 otherwise.
"""

import sys
import urllib.request
from http.client import HTTPException

_SECONDS = 5.0


def is_healthy(url: str) -> bool:
    """Whether the URL responds with success."""
    # Requests within one container must not use a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(url, timeout=_SECONDS).close()
    except (OSError, HTTPException):  # refused, timed out, or not successful
        return False
    return True


if __name__ == "__main__":
    sys.exit(0 if is_healthy(*sys.argv[1:]) else 1)
