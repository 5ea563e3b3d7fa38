"""A program that follows a balance by server-sent events."""

import threading
from contextlib import suppress
from itertools import cycle
from typing import Self

import httpx
import orjson

from tests.support.processes import DEADLINE_SECONDS


class Subscriber:
    """Follows one card in a thread, and connects again after each end."""

    def __init__(self, urls: list[str], card: str) -> None:
        self._urls = urls
        self._path = f"/v1/customers/{card}/events"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sequences: list[int] = []
        self.connections = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_SECONDS)

    def _run(self) -> None:
        last: dict[str, str] = {}
        with httpx.Client(timeout=40, trust_env=False) as http:
            for url in cycle(self._urls):
                if self._stopping.is_set():
                    return
                self.connections += 1
                with suppress(httpx.TransportError), http.stream("GET", url + self._path, headers=last) as response:
                    self._read(response, last)

    def _read(self, response: httpx.Response, last: dict[str, str]) -> None:
        for line in response.iter_lines():
            if self._stopping.is_set():
                return
            if line.startswith("id: "):
                last["Last-Event-ID"] = line.removeprefix("id: ")
            elif line.startswith("data: ") and "Sequence" in line:
                self.sequences.append(orjson.loads(line.removeprefix("data: "))["Sequence"])
