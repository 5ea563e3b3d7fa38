"""A program that follows a balance by server-sent events."""

from contextlib import suppress
from itertools import cycle

import httpx
import orjson

from tests.support.threads import BackgroundThreads

_PAUSE_SECONDS = 0.2


class Subscriber(BackgroundThreads):
    """Follows one card in a thread. Connects again after the end of each connection."""

    def __init__(self, urls: list[str], card: str) -> None:
        self._urls = urls
        self._path = f"/v1/customers/{card}/events"
        super().__init__(self._run)
        self.sequences: list[int] = []
        self.connections = 0

    def _run(self) -> None:
        last: dict[str, str] = {}
        with httpx.Client(timeout=40, trust_env=False) as http:
            for url in cycle(self._urls):
                if self.stopping.wait(_PAUSE_SECONDS if self.connections else 0):
                    return
                self.connections += 1
                with suppress(httpx.TransportError), http.stream("GET", url + self._path, headers=last) as response:
                    self._read(response, last)

    def _read(self, response: httpx.Response, last: dict[str, str]) -> None:
        fields: dict[str, str] = {}
        for line in response.iter_lines():
            if self.stopping.is_set():
                return
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
                continue
            # An empty line ends an event. If a connection breaks in the middle of an event, the event does not count.
            if fields.get("event") == "balance":
                last["Last-Event-ID"] = fields["id"]
                self.sequences.append(orjson.loads(fields["data"])["Sequence"])
            fields = {}
