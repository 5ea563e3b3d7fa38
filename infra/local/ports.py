"""Ports of this machine, on the loopback address only."""

import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """A port nobody listens on."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def is_taken(port: int, host: str = HOST) -> bool:
    """Whether a server could not listen there."""
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return True
    return False
