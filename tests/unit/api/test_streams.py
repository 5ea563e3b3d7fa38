"""The open streams of an instance: their places, their longest time, and the rights of their callers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request
from fastapi.responses import StreamingResponse

from api.events import streams
from api.events.streams import EventStreams, TooManyStreams
from api.security.caller import Caller
from services.api_keys.keys import Scope
from tests.support.secured import SecuredGroup, bearer

ANNA = Caller("anna", frozenset({Scope.BALANCE_READ}))


def request_of(caller: Caller, security: Any = None, **headers: str) -> Request:
    app = SimpleNamespace(state=SimpleNamespace(dependencies=SimpleNamespace(security=security)))
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "caller": caller, "app": app, "headers": raw})


def test_a_forwarded_stream_takes_no_place_of_its_caller() -> None:
    """The forwarding instance has counted it. Otherwise a caller with one place would have none at the owner."""
    places = EventStreams(most_of_a_caller=1)
    forwarded = replace(ANNA, is_forwarded=True)
    with ExitStack() as stack:
        for caller in (forwarded, forwarded, ANNA, forwarded):
            stack.enter_context(places.hold_place(request_of(caller)))
        with pytest.raises(TooManyStreams):
            stack.enter_context(places.hold_place(request_of(ANNA)))


async def sent(request: Request, events: AsyncGenerator[bytes]) -> int:
    """The number of parts that a stream sends until it ends. At the end nothing reads its source any more."""
    response = cast(StreamingResponse, EventStreams(1).response(request, events))
    number = len([part async for part in response.body_iterator])
    assert [] == [part async for part in events]
    return number


def test_a_second_signal_after_the_end_of_the_loop_is_no_error() -> None:
    """Otherwise the exit status would change from 0 to 1."""
    open_streams = EventStreams(1)

    async def bind() -> asyncio.AbstractEventLoop:
        open_streams.bind(loop := asyncio.get_running_loop())
        return loop

    ended = asyncio.run(bind())
    open_streams.close()
    assert ended.is_closed()


def test_a_stream_ends_after_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client connects again, so streams move to instances that have started later."""
    now = 0.0
    monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=lambda: now))

    async def each_minute() -> AsyncGenerator[bytes]:
        nonlocal now
        for _ in range(100):
            now += 60
            yield b":\n\n"

    assert 11 == asyncio.run(sent(request_of(ANNA), each_minute()))


@pytest.mark.parametrize("change", [{"scopes": frozenset({Scope.LEDGER_READ})}, {"store_ids": frozenset({"STR1"})}])
def test_a_stream_ends_when_the_rights_of_its_key_change(tmp_path: Path, change: dict[str, Any]) -> None:
    """The key is still valid, but nothing checks the new rights for a stream that is open."""
    secured = SecuredGroup(tmp_path)
    text, key = secured.key(Scope.BALANCE_READ)
    security = secured.security("http://one:8080")
    caller = security.keys.caller_of(text)
    assert caller is not None

    async def balances() -> AsyncGenerator[bytes]:
        yield b"before"
        secured.publish(key)
        yield b"after a record without a change"
        secured.publish(replace(key, **change))
        yield b"after the change"

    assert 2 == asyncio.run(sent(request_of(caller, security, **bearer(text)), balances()))
