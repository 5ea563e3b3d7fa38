"""``python -m infra.docker.healthy URL`` is the health check of images that have no curl.

The exit status is 0 if the URL responds with success, and 1 otherwise.
"""

import os
import ssl
import sys
import urllib.request
from http.client import HTTPException

_SECONDS = 5.0


def is_healthy(url: str) -> bool:
    """Whether the URL responds with success."""
    # Requests within one container must not use a proxy.
    direct = urllib.request.ProxyHandler({})
    try:
        opener = urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=_context()))
        opener.open(url, timeout=_SECONDS).close()
    except (OSError, HTTPException):  # refused, timed out, or not successful
        return False
    return True


def _context() -> ssl.SSLContext:
    """A context that trusts every server, because the check does not leave its container.

    The certificate of the API names the host and not 127.0.0.1. If the API requires certificates of clients, the check
    sends this certificate, which is also valid for a client.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate := os.environ.get("LOYALTY_API_CERTIFICATE_FILE"):
        context.load_cert_chain(certificate, os.environ.get("LOYALTY_API_CERTIFICATE_KEY_FILE"))
    return context


if __name__ == "__main__":
    sys.exit(0 if is_healthy(*sys.argv[1:]) else 1)
