"""Sends many calls of one of Spark's map states at once.

PySpark sends one call to the JVM and waits for its answer before it sends the next. So each account costs two thread
switches in each direction. The JVM answers the calls of a connection in order. So this module writes many calls
together, and then reads their answers together. It uses private classes of PySpark, which another version may change
(docs/explanation/decisions/0015).
"""

import pickle
import socket
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any

import msgspec
from pyspark.errors import PySparkRuntimeError
from pyspark.serializers import pickle_protocol
from pyspark.sql import types as T
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

from pipelines.columns.types import struct

SHARED = "maps"
"""The state variable that several maps share: from the name of a map and a key to a value, both in MessagePack."""

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(tuple[Any, ...]).decode

_KEY = struct(map="string", key="binary")
_CONTENT = struct(value="binary")

Row = tuple[Any, ...]

_MESSAGE_VERSION = 0
_HEADER = Struct(">ii")
_BUFFER_SHARE = 4
"""A window fills at most this part of the socket's send buffer, because the kernel's overhead uses the buffer, too."""


class MapCalls:
    """Reads and writes many values of one map state, under the key of the current group.

    Keys and values are tuples of types that Spark does not convert: strings, integers, bytes and lists of them. Each
    method raises PySparkRuntimeError if Spark refuses a call.
    """

    def __init__(self, state: MapState) -> None:
        self._name: str = state._stateName  # noqa: SLF001  # there is no public name
        self._client: Any = state._mapStateClient._stateful_processor_api_client  # noqa: SLF001
        buffer = self._client._client_socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)  # noqa: SLF001
        self._window: int = buffer // _BUFFER_SHARE

    def get(self, keys: Sequence[Row]) -> list[Row | None]:
        """The values of these keys in their order, None for a missing key."""
        calls = (messages.MapStateCall(getValue=messages.GetValue(userKey=_bytes(key))) for key in keys)
        return [pickle.loads(value) if value else None for value in self._answers(calls)]  # noqa: S301  # from our own JVM

    def update(self, values: Iterable[tuple[Row, Row]]) -> None:
        calls = (
            messages.MapStateCall(updateValue=messages.UpdateValue(userKey=_bytes(key), value=_bytes(value)))
            for key, value in values
        )
        self._answers(calls)

    def remove(self, keys: Iterable[Row]) -> None:
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
                raise PySparkRuntimeError(f"Spark refused a call of the state variable {self._name}: {error}")
        return [value for _, _, value in answers]

    def _request(self, call: Any) -> bytes:
        call.stateName = self._name
        variable = messages.StateVariableRequest(mapStateCall=call)
        message: bytes = messages.StateRequest(stateVariableRequest=variable).SerializeToString()
        return _HEADER.pack(_MESSAGE_VERSION, len(message)) + message


class StateMaps:
    """The maps of one bucket.

    Spark sets up every state variable anew in each task, which takes longer than the work of a small micro-batch
    (docs/lab/queries.md). So the maps share one variable.
    """

    def __init__(self, handle: StatefulProcessorHandle, *, are_shared: bool) -> None:
        """Args: are_shared: False in an older checkpoint, where each map is a variable."""
        self._handle = handle
        self._own: dict[str, MapState] = {}
        self._shared = MapCalls(handle.getMapState(SHARED, _KEY, _CONTENT)) if are_shared else None

    def open(self, name: str, key: T.StructType, value: T.StructType) -> MapCalls:
        """The map with this name. ``key`` and ``value`` are the types of its own variable in an older checkpoint."""
        if self._shared is None:
            self._own[name] = self._handle.getMapState(name, key, value)
            return MapCalls(self._own[name])
        return _SharedMap(self._shared, name)

    def keys_of(self, name: str) -> Iterator[Row]:
        """All keys of a map with a variable of its own. No key of a shared map, because this would read all maps."""
        return (key for key, _ in self._own[name].iterator()) if name in self._own else iter(())


class _SharedMap(MapCalls):
    """One map among others in a state variable."""

    def __init__(self, shared: MapCalls, name: str) -> None:
        self._shared = shared
        self._name = name

    def get(self, keys: Sequence[Row]) -> list[Row | None]:
        return [decode(value[0]) if value else None for value in self._shared.get([*map(self._key, keys)])]

    def update(self, values: Iterable[tuple[Row, Row]]) -> None:
        self._shared.update((self._key(key), (encode(value),)) for key, value in values)

    def remove(self, keys: Iterable[Row]) -> None:
        self._shared.remove(map(self._key, keys))

    def _key(self, key: Row) -> Row:
        return self._name, encode(key)


def _bytes(row: Row) -> bytes:
    return pickle.dumps(row, pickle_protocol)


def _windows(requests: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """Group requests so that each group fits into the socket's buffer while the JVM reads nothing.

    The JVM reads no requests while it waits for us to read an answer. If a write then waited for the JVM, both sides
    would wait forever. So a write must fit into the buffer while answers are outstanding. A request that is larger than
    the buffer is sent alone.
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
