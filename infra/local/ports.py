"""Ports of this machine, and the URLs of its servers."""

import secrets
import socket

from services.settings import Settings, host_in_url

HOST = "127.0.0.1"

_FIRST, _END = 10_000, 32_768
"""Linux gives outgoing connections higher ports (ip_local_port_range). So no connection can take one of these ports
before its server listens.
"""


def free_port() -> int:
    """A random port that no server uses. Until this process ends, no other call on this machine returns it.

    So two test runs at the same time cannot start their servers on the same port.
    """
    port = _FIRST + secrets.randbelow(_END - _FIRST)
    reservation = socket.socket()
    try:
        reservation.bind((HOST, port))
    except OSError:
        reservation.close()
        return free_port()
    # With this option, Linux lets a server listen on the port. Set it after the bind: without the option, the bind
    # fails if another process keeps the port.
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.detach()  # The descriptor stays open, and keeps the port, until the process ends.
    return port


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """The URL at which this machine reaches a server that listens on this host."""
    # A server that listens on all addresses also listens on the loopback address.
    reached = {"0.0.0.0": HOST, "::": "::1"}.get(host, host)  # noqa: S104  # compared, not bound
    return f"{scheme}://{host_in_url(reached)}:{port}"


def api_url_of(settings: Settings) -> str:
    """The URL at which this machine reaches the API of these settings."""
    return url_of(settings.api_host, settings.api_port, "https" if settings.api_certificate_file else "http")
