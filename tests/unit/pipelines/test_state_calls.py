"""Many state calls at once."""

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T

from pipelines.runtime.state_calls import MapCalls
from tests.support.state_server import state_server

KEY = T.StructType([T.StructField("card", T.StringType())])
VALUE = T.StructType([T.StructField("account", T.BinaryType()), T.StructField("due", T.LongType())])


def test_requests_equal_those_of_pyspark(tmp_path):
    """The requests equal, byte for byte, those that PySpark sends one by one, and the answers are the same."""
    values = {("4711",): (b"\x00account", 17), ("Zoë",): (bytes(5_000), 0)}
    with state_server(tmp_path / "pyspark") as (handle, server):
        state = handle.getMapState("accounts", KEY, VALUE)
        for key, value in values.items():
            state.updateValue(key, value)
        state.removeKey(("4711",))
        expected = [state.getValue(("Zoë",)), state.getValue(("4711",))]
        requests = server.requests
    with state_server(tmp_path / "together") as (handle, server):
        calls = MapCalls(handle.getMapState("accounts", KEY, VALUE))
        calls.update(values.items())
        calls.remove([("4711",)])
        assert expected == calls.get([("Zoë",), ("4711",)])
        assert requests == server.requests


@pytest.mark.timeout(120)
def test_neither_side_waits_forever(tmp_path):
    """Requests and answers that exceed the socket's buffer pass, and so does a value that is larger than it."""
    keys = [(f"{number:010}",) for number in range(20_000)]
    with state_server(tmp_path / "socket") as (handle, _):
        calls = MapCalls(handle.getMapState("accounts", KEY, VALUE))
        calls.update([(("large",), (bytes(2_000_000), 1)), *((key, (bytes(500), 2)) for key in keys)])
        assert [(bytes(500), 2)] * len(keys) == calls.get(keys)
        assert [None, (bytes(2_000_000), 1)] == calls.get([("new",), ("large",)])


def test_a_refused_call_raises_an_error(tmp_path):
    """The error has the JVM's reason, and no answer is mistaken for another key's."""
    with state_server(tmp_path / "socket") as (handle, server):
        calls = MapCalls(handle.getMapState("accounts", KEY, VALUE))
        server.fails_at = 3
        with pytest.raises(PySparkRuntimeError, match=r"accounts.*out of order"):
            calls.get([("1",), ("2",), ("3",)])
