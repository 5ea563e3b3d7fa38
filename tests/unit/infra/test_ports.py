"""Free ports for servers that start shortly later."""

import secrets
import socket
from itertools import chain, count
from pathlib import Path

import pytest

from infra.local.ports import HOST, free_port

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_free_port_can_be_bound() -> None:
    """It is not free while a server listens."""
    port = free_port()
    with socket.create_server((HOST, port)), pytest.raises(OSError, match="Address already in use"):
        socket.create_server((HOST, port))


def test_no_other_call_returns_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two test runs once started a server on the same port. The port stays kept after its server has ended."""
    number = secrets.randbelow(20_000)
    numbers = chain([number], count(number))
    monkeypatch.setattr(secrets, "randbelow", lambda _: next(numbers))
    port = free_port()
    socket.create_server((HOST, port)).close()
    assert free_port() != port


@pytest.mark.skipif(not _EPHEMERAL.exists(), reason="not Linux")
def test_no_outgoing_connection_gets_a_free_port() -> None:
    """Free ports lie outside the range of outgoing connections, which could take them before the server starts."""
    lowest = int(_EPHEMERAL.read_text(encoding="utf-8").split()[0])
    if lowest < 32_768:
        pytest.skip("this machine's range is not Linux's usual one")
    assert max(free_port() for _ in range(50)) < lowest
