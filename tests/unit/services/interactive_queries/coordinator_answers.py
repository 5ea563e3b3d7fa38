"""What a coordinator answers, another member of the group, and the clock of a lease."""

from concurrent.futures import Future
from typing import Any

PLACE = ("loyalty-balances", 1)
OTHER = "http://10.0.0.2:8080"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def answer(result: Any) -> "Future[Any]":
    """The future of a result, an error, or None for no response yet."""
    future: Future[Any] = Future()
    if result is None:
        return future
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future
