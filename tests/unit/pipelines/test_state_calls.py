"""Many state calls in one go, against a server that speaks as Spark's does: one request after the other."""

import socket
import struct
import threading
from contextlib import closing, contextmanager

import pyspark
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T
from pyspark.sql.streaming.map_state_client import MapStateClient
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor import MapState
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient

from pipelines.state_calls import MapCalls, UnknownPySparkError

KEY = T.StructType([T.StructField("card", T.StringType())])
VALUE = T.StructType([T.StructField("account", T.BinaryType()), T.StructField("due", T.LongType())])


class StateServer(threading.Thread):
    """Keeps one map; answers a request before it reads the next, and waits where nobody reads its answer."""

    def __init__(self, listening):
        super().__init__(daemon=True)
        self.listening = listening
        self.kept = {}
        self.requests = []
        self.fails_at = None

    def run(self):
        connection, _ = self.listening.accept()
        with connection, connection.makefile("rb") as incoming:
            while header := incoming.read(8):
                version, length = struct.unpack(">ii", header)
                request = incoming.read(length)
                self.requests.append((version, request))
                answer = self.answer(messages.StateRequest.FromString(request).stateVariableRequest.mapStateCall)
                connection.sendall(struct.pack(">i", len(answer)) + answer)

    def answer(self, call):
        if len(self.requests) == self.fails_at:
            return messages.StateResponse(statusCode=1, errorMessage="out of order").SerializeToString()
        value = b""
        match call.WhichOneof("method"):
            case "getValue":
                value = self.kept.get(call.getValue.userKey, b"")
            case "updateValue":
                self.kept[call.updateValue.userKey] = call.updateValue.value
            case "removeKey":
                self.kept.pop(call.removeKey.userKey, None)
        return messages.StateResponse(value=value).SerializeToString()


@contextmanager
def a_map_state(path):
    """PySpark's own map state, and the server behind it."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        server = StateServer(listening)
        server.start()
        client = StatefulProcessorApiClient(str(path), KEY)
        with closing(client._client_socket), closing(client.sockfile):
            yield MapState(MapStateClient(client, KEY, VALUE), "accounts"), server
        server.join(timeout=30)


def test_says_what_pyspark_says(tmp_path):
    """The requests are, byte for byte, those that PySpark sends one by one, and the answers mean the same."""
    values = {("4711",): (b"\x00account", 17), ("Zoë",): (bytes(5_000), 0)}
    with a_map_state(tmp_path / "pyspark") as (state, server):
        for key, value in values.items():
            state.updateValue(key, value)
        state.removeKey(("4711",))
        expected = [state.getValue(("Zoë",)), state.getValue(("4711",))]
        requests = server.requests
    with a_map_state(tmp_path / "together") as (state, server):
        calls = MapCalls(state)
        calls.update(values.items())
        calls.remove([("4711",)])
        assert expected == calls.get([("Zoë",), ("4711",)])
        assert requests == server.requests


@pytest.mark.timeout(120)
def test_neither_side_waits_for_ever(tmp_path):
    """Requests and answers that the socket cannot hold, and a value larger than it: all get through."""
    keys = [(f"{number:010}",) for number in range(20_000)]
    with a_map_state(tmp_path / "socket") as (state, _):
        calls = MapCalls(state)
        calls.update([(("large",), (bytes(2_000_000), 1)), *((key, (bytes(500), 2)) for key in keys)])
        assert [(bytes(500), 2)] * len(keys) == calls.get(keys)
        assert [None, (bytes(2_000_000), 1)] == calls.get([("new",), ("large",)])


def test_a_refusal_is_an_error(tmp_path):
    """What the JVM refuses is raised with its reason, and no value is taken for another's."""
    with a_map_state(tmp_path / "socket") as (state, server):
        server.fails_at = 2
        with pytest.raises(PySparkRuntimeError, match=r"accounts.*out of order"):
            MapCalls(state).get([("1",), ("2",), ("3",)])


def test_another_pyspark_is_refused(tmp_path, monkeypatch):
    """With another version of PySpark nobody knows yet what it says on the socket."""
    with a_map_state(tmp_path / "socket") as (state, _):
        monkeypatch.setattr(pyspark, "__version__", "4.3.0")
        with pytest.raises(UnknownPySparkError, match=r"not of 4\.3\.0"):
            MapCalls(state)
