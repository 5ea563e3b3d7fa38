"""Ports of this machine, on the loopback address only."""

import secrets
import socket

HOST = "127.0.0.1"

_LOWEST, _BEYOND = 10_000, 32_768
"""Below the ports that Linux gives to outgoing connections (ip_local_port_range): one of those could take a port before
its server is there to listen."""


def free_port() -> int:
    """A port nobody listens on, and no outgoing connection is given."""
    while is_taken(port := _LOWEST + secrets.randbelow(_BEYOND - _LOWEST)):
        pass
    return port


def is_taken(port: int, host: str = HOST) -> bool:
    """Whether a server could not listen there."""
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return True
    return False
