"""Ports on the loopback address of this machine."""

import secrets
import socket

HOST = "127.0.0.1"

_FIRST, _END = 10_000, 32_768
"""These ports are below those of outgoing connections (ip_local_port_range in Linux). Such a connection could take a
port before its server listens."""


def free_port() -> int:
    """A port that no server uses, and that no outgoing connection can get."""
    while is_taken(port := _FIRST + secrets.randbelow(_END - _FIRST)):
        pass
    return port


def is_taken(port: int, host: str = HOST) -> bool:
    """Whether another server listens on the port."""
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return True
    return False
