"""``python -m infra.docker.healthy URL [TEXT]``: the health check of the images that have Python but no curl.

Exit status 0 if the URL answers with success, and its body has the text where one is given; 1 otherwise.
"""

import sys
import urllib.request

_SECONDS = 5.0


def is_healthy(url: str, text: str = "") -> bool:
    """Whether the URL answers with success and, at the start of a line of its body, this text."""
    # A proxy of the environment has no business inside one container.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_SECONDS) as response:
            return f"\n{text}" in "\n" + response.read().decode("utf-8", "replace")
    except OSError:  # refused, timed out, or an answer that is no success
        return False


if __name__ == "__main__":
    sys.exit(0 if is_healthy(*sys.argv[1:]) else 1)
