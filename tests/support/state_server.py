"""A server that answers the state calls of PySpark in order, as the JVM of Spark does."""

import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import types as T
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient


class StateServer(threading.Thread):
    """Stores the map states and timers of one group.

    Attributes:
        kept: the keys and values (bytes) of each map state.
        requests: the message version and the bytes of each request, in order.
        fails_at: the number of the request that fails; 0 for none.
    """

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(daemon=True)
        self._listening = listening
        self.kept: dict[str, dict[bytes, bytes]] = defaultdict(dict)
        self.timers: set[int] = set()
        self.requests: list[tuple[int, bytes]] = []
        self.fails_at = 0

    def run(self) -> None:
        connection, _ = self._listening.accept()
        with connection, connection.makefile("rb") as incoming:
            while header := incoming.read(8):
                version, length = struct.unpack(">ii", header)
                self.requests.append((version, incoming.read(length)))
                answer = self._answer(messages.StateRequest.FromString(self.requests[-1][1])).SerializeToString()
                connection.sendall(struct.pack(">i", len(answer)) + answer)

    def _answer(self, request: Any) -> Any:
        if len(self.requests) == self.fails_at:
            return messages.StateResponse(statusCode=1, errorMessage="out of order")
        if request.WhichOneof("method") == "stateVariableRequest":
            return self._map_call(request.stateVariableRequest.mapStateCall)
        call = request.statefulProcessorCall
        if call.WhichOneof("method") == "timerStateCall":
            self.timers.add(call.timerStateCall.register.expiryTimestampMs)
        return messages.StateResponse()

    def _map_call(self, call: Any) -> Any:
        kept = self.kept[call.stateName]
        match call.WhichOneof("method"):
            case "getValue":
                return messages.StateResponse(value=kept.get(call.getValue.userKey, b""))
            case "updateValue":
                kept[call.updateValue.userKey] = call.updateValue.value
            case "removeKey":
                kept.pop(call.removeKey.userKey, None)
            case "iterator" if kept:
                pairs = [messages.KeyAndValuePair(key=key, value=value) for key, value in kept.items()]
                return messages.StateResponseWithMapIterator(kvPair=pairs)
            case "iterator":
                return messages.StateResponseWithMapIterator(statusCode=2)
        return messages.StateResponse()


@contextmanager
def state_server(path: Path) -> Iterator[tuple[StatefulProcessorHandle, StateServer]]:
    """PySpark's handle of a processor, and the server behind it. ``path`` is a new Unix socket."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        server = StateServer(listening)
        server.start()
        key = T.StructType([T.StructField("bucket", T.IntegerType())])
        client: Any = StatefulProcessorApiClient(str(path), key)
        with closing(client._client_socket), closing(client.sockfile):
            yield StatefulProcessorHandle(client), server
        server.join(timeout=30)
