"""A proxy between Kafka clients and a broker. It can hide the broker in responses, and it can lose acknowledgements."""

import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from infra.local.ports import HOST

_PRODUCE, _METADATA = 0, 3
"""API keys of requests (https://kafka.apache.org/protocol)."""

_Asked = dict[bytes, tuple[int, str]]
"""API key and client id of the requests without a response, by correlation id."""

_CLIENT_ID = 2 + 2 + 4 + 2
"""The position of the client id in a request, after its length."""

_BROKERS = 4 + 1 + 4
"""The position of the list of brokers in a Metadata response, versions 9 to 13. The correlation id, the tags of the
header and the throttle time come before it.
"""


class KafkaProxy:
    """Forwards requests and responses. Clients know only the address of the proxy.

    Attributes:
        port: the port for clients.
        hidden: the number of responses without the broker.
        lost: the number of lost acknowledgements by client id.
    """

    def __init__(self, broker: str, port: int = 0) -> None:
        """Start to forward.

        Args:
            broker: the address that the broker advertises. Its host must have fewer than 127 letters.
            port: the port for clients; 0 for a free one.
        """
        host, _, broker_port = broker.rpartition(":")
        self._broker = (host, int(broker_port))
        self._hides = self._loses = False
        self.hidden = 0
        self.lost: Counter[str] = Counter()
        self._clients: set[socket.socket] = set()
        proxy = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            allow_reuse_address = True
            request_queue_size = 100

        self._server = Server((HOST, port), Connection)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.disconnect()

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @contextmanager
    def hiding(self) -> Iterator[None]:
        """During this block, Metadata responses contain topics but no brokers."""
        self._hides = True
        try:
            yield
        finally:
            self._hides = False

    @contextmanager
    def losing(self) -> Iterator[None]:
        """During this block, the broker stores writes, and the connection ends before the client knows about it."""
        self._loses = True
        try:
            yield
        finally:
            self._loses = False

    def disconnect(self) -> None:
        """Close all connections. The clients connect again and ask for metadata."""
        for each in self._clients.copy():
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _serve(self, client: socket.socket) -> None:
        asked: _Asked = {}
        self._clients.add(client)
        with suppress(OSError), socket.create_connection(self._broker) as broker:
            threading.Thread(target=self._pass_responses, args=(broker, client, asked), daemon=True).start()
            for request in _frames(client):
                kind, _, correlation_id, length = struct.unpack_from(">hh4sh", request)
                asked[correlation_id] = kind, request[_CLIENT_ID : _CLIENT_ID + length].decode()
                broker.sendall(_frame(request))
            broker.shutdown(socket.SHUT_RDWR)
        self._clients.discard(client)

    def _pass_responses(self, broker: socket.socket, client: socket.socket, asked: _Asked) -> None:
        host = self._broker[0].encode()
        for response in _frames(broker):
            kind, client_id = asked.pop(response[:4])
            if kind == _PRODUCE and self._loses:
                self.lost[client_id] += 1
                break
            # In a response, the port of the broker follows its host. Replace it with the port of the proxy.
            own = response.replace(host + struct.pack(">i", self._broker[1]), host + struct.pack(">i", self.port))
            if kind == _METADATA and self._hides:
                own = _without_brokers(own)
                self.hidden += 1
            with suppress(OSError):  # the client has closed the connection
                client.sendall(_frame(own))
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def _frames(connection: socket.socket) -> Iterator[bytes]:
    with connection.makefile("rb") as stream, suppress(OSError):
        while len(size := stream.read(4)) == 4:
            yield stream.read(struct.unpack(">i", size)[0])


def _without_brokers(metadata: bytes) -> bytes:
    """The same response with an empty list of brokers."""
    place = _BROKERS + 1
    for _ in range(metadata[_BROKERS] - 1):  # Kafka encodes the length of a compact list of n elements as n + 1
        host_length = metadata[place + 4] - 1
        rack = place + 4 + 1 + host_length + 4
        rack_length = max(0, metadata[rack] - 1)
        place = rack + 1 + rack_length + 1
    return metadata[:_BROKERS] + b"\x01" + metadata[place:]
