"""Many calls of Spark's map states in one go.

PySpark sends a call to the JVM and waits for its answer before it sends the next: two changes of thread for each
account, in either direction. The JVM's server takes the calls of a connection one after the other and answers in that
order, so calls may be written together and their answers read together. That is what Spark's private classes do
today, not what it promises: another version of PySpark is refused until somebody has looked (decision 15).
"""

import pickle
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.serializers import pickle_protocol
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor import MapState

KNOWN_VERSION = "4.2.0"

Row = tuple[Any, ...]

_MESSAGE_VERSION = 0
_HEADER = struct.Struct(">ii")
_OF_THE_BUFFER = 4
"""A window is that part of the socket's send buffer: the kernel counts its own overhead as well."""


class UnknownPySparkError(RuntimeError):
    """This PySpark may speak to its JVM in another way than the one that is known here."""


class MapCalls:
    """Reads and writes many values of one map state, under the key of the group that is being processed.

    Keys and values are tuples of what Spark has no need to convert: strings, integers, bytes and lists of those.
    """

    def __init__(self, state: MapState) -> None:
        """Raises UnknownPySparkError."""
        if pyspark.__version__ != KNOWN_VERSION:
            raise UnknownPySparkError(
                f"state calls are known of PySpark {KNOWN_VERSION}, not of {pyspark.__version__}: "
                "docs/explanation/decisions/0015-state-calls-together.md says what to check"
            )
        # Spark's own names, private as they are: that is the whole point of this module.
        self._name: str = state._stateName  # noqa: SLF001
        self._client: Any = state._mapStateClient._stateful_processor_api_client  # noqa: SLF001
        buffer = self._client._client_socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)  # noqa: SLF001
        self._window: int = buffer // _OF_THE_BUFFER

    def get(self, keys: Sequence[Row]) -> list[Row | None]:
        """The values of these keys, in their order; None where there is none. Raises PySparkRuntimeError."""
        calls = (messages.MapStateCall(getValue=messages.GetValue(userKey=_bytes(key))) for key in keys)
        return [pickle.loads(value) if value else None for value in self._answers(calls)]  # noqa: S301  # of our JVM

    def update(self, values: Iterable[tuple[Row, Row]]) -> None:
        """Set the values of these keys. Raises PySparkRuntimeError."""
        calls = (
            messages.MapStateCall(updateValue=messages.UpdateValue(userKey=_bytes(key), value=_bytes(value)))
            for key, value in values
        )
        self._answers(calls)

    def remove(self, keys: Iterable[Row]) -> None:
        """Remove these keys. Raises PySparkRuntimeError."""
        calls = (messages.MapStateCall(removeKey=messages.RemoveKey(userKey=_bytes(key))) for key in keys)
        self._answers(calls)

    def _answers(self, calls: Iterable[Any]) -> list[bytes]:
        answers: list[tuple[int, str, bytes]] = []
        for window in _windows(map(self._request, calls), self._window):
            self._client.sockfile.write(b"".join(window))
            self._client.sockfile.flush()
            answers += [self._client._receive_proto_message() for _ in window]  # noqa: SLF001
        for status, error, _ in answers:
            if status:
                raise PySparkRuntimeError(f"state {self._name} cannot be read or written: {error}")
        return [value for _, _, value in answers]

    def _request(self, call: Any) -> bytes:
        call.stateName = self._name
        variable = messages.StateVariableRequest(mapStateCall=call)
        message: bytes = messages.StateRequest(stateVariableRequest=variable).SerializeToString()
        return _HEADER.pack(_MESSAGE_VERSION, len(message)) + message


def _bytes(row: Row) -> bytes:
    return pickle.dumps(row, pickle_protocol)


def _windows(requests: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """Requests to be sent together: they fit into the socket's buffer even while the JVM reads nothing.

    It reads nothing while an answer waits to be read here. So what is written with answers outstanding must never
    have to wait for the JVM, or both would wait for ever. A request that is too large goes alone, when none is.
    """
    window: list[bytes] = []
    filled = 0
    for request in requests:
        if window and filled + len(request) > size:
            yield window
            window, filled = [], 0
        window.append(request)
        filled += len(request)
    if window:
        yield window
