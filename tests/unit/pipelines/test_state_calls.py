"""Many state calls in one go."""

import pyspark
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T

from pipelines.accounts.state_calls import MapCalls, UnknownPySparkError
from tests.support.state_server import state_server

KEY = T.StructType([T.StructField("card", T.StringType())])
VALUE = T.StructType([T.StructField("account", T.BinaryType()), T.StructField("due", T.LongType())])


def test_says_what_pyspark_says(tmp_path):
    """The requests are, byte for byte, those that PySpark sends one by one, and the answers mean the same."""
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
def test_neither_side_waits_for_ever(tmp_path):
    """Requests and answers that the socket cannot hold, and a value larger than it: all get through."""
    keys = [(f"{number:010}",) for number in range(20_000)]
    with state_server(tmp_path / "socket") as (handle, _):
        calls = MapCalls(handle.getMapState("accounts", KEY, VALUE))
        calls.update([(("large",), (bytes(2_000_000), 1)), *((key, (bytes(500), 2)) for key in keys)])
        assert [(bytes(500), 2)] * len(keys) == calls.get(keys)
        assert [None, (bytes(2_000_000), 1)] == calls.get([("new",), ("large",)])


def test_a_refusal_is_an_error(tmp_path):
    """What the JVM refuses is raised with its reason, and no value is taken for another's."""
    with state_server(tmp_path / "socket") as (handle, server):
        calls = MapCalls(handle.getMapState("accounts", KEY, VALUE))
        server.fails_at = 3
        with pytest.raises(PySparkRuntimeError, match=r"accounts.*out of order"):
            calls.get([("1",), ("2",), ("3",)])


def test_another_pyspark_is_refused(tmp_path, monkeypatch):
    """With another version of PySpark nobody knows yet what it says on the socket."""
    with state_server(tmp_path / "socket") as (handle, _):
        state = handle.getMapState("accounts", KEY, VALUE)
        monkeypatch.setattr(pyspark, "__version__", "4.3.0")
        with pytest.raises(UnknownPySparkError, match=r"not of 4\.3\.0"):
            MapCalls(state)
