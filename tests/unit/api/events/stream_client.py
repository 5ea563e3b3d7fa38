"""Streams of balance events: instances in one process, and a changelog that the test compacts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import httpx
import orjson

from schemas.topics import LOYALTY_BALANCES
from services.clock import boot_seconds
from services.messaging.avro import encoder
from services.state_stores.definition import StoreDefinition
from services.state_stores.task import ChangelogRecord, StoreTask
from tests.support.builders import CARD, IDS
from tests.support.clusters import Group, StreamingTransport

PATH = f"/v1/customers/{CARD}/events"
OPENED = 1_767_373_451_000


def balance(sequence: int, opened: int = OPENED) -> dict[str, Any]:
    return {
        "CustomerCardNo": CARD,
        "TotalLoyaltyPoints": Decimal(sequence),
        "Sequence": sequence,
        "OpenedTime": opened,
        "UpdatedTime": OPENED,
    }


class Changelog:
    """The records of the card's partition. ``compact`` forgets all but the last one of the card."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.records: list[ChangelogRecord] = []
        self._next = 0
        for each in group.instances:
            each.app.state.dependencies.balance_events._history = self.read

    def write(self, *records: dict[str, Any] | None) -> None:
        """Write balances of the card, or None for its erasure."""
        for record in records:
            value = None if record is None else encoder(LOYALTY_BALANCES, IDS)(record)
            self.records.append(ChangelogRecord(self._next, 0, CARD.encode(), value))
            self._next += 1
            self._group.write([(LOYALTY_BALANCES, CARD, record)])

    def compact(self) -> None:
        del self.records[:-1]

    def read(self, _: StoreDefinition, __: int, key: bytes, span: range) -> list[ChangelogRecord]:
        return [each for each in self.records if each.offset in span and each.key == key]


class Stream:
    """The events of one connection."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str, str, Any]:
        """Name, id and data of the next event."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(20):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                elif "event" in fields:
                    return fields["event"], fields.get("id", ""), orjson.loads(fields["data"])
        raise AssertionError("the stream has ended")

    async def sequence(self) -> int:
        name, _, data = await self.next()
        assert "balance" == name
        return int(data["Sequence"])

    async def heartbeat(self) -> None:
        """Wait until the stream has read the store and the changelog, and has nothing more to send."""
        async with asyncio.timeout(20):
            assert ":" == await anext(line async for line in self._lines if line == ":")

    async def end(self) -> None:
        """Wait for the end of the stream."""
        async with asyncio.timeout(20):
            async for _ in self._lines:
                pass


class Client:
    """A client of all instances."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.changelog = Changelog(group)
        self.http = httpx.AsyncClient(transport=StreamingTransport(group))

    @asynccontextmanager
    async def stream(self, number: int = 0, last: str | None = None, **headers: str) -> AsyncIterator[Stream]:
        all_headers = headers | ({"Last-Event-ID": last} if last is not None else {})
        url = self.group.instances[number].url + PATH
        async with self.http.stream("GET", url, headers=all_headers) as response:
            yield Stream(response)

    def report_end(self, offset: int, number: int = 0) -> None:
        """Let the broker report this end offset of the card's partition to an instance."""
        self.task(number).note_end_offset(offset, boot_seconds() + 60, 0)
        self.group.instances[number].waiters.notify([CARD.encode()])

    def advance(self, position: int, number: int = 0) -> None:
        """Let an instance apply the records of other cards in the card's partition, up to this position."""
        self.task(number).advance(position)

    def task(self, number: int) -> StoreTask:
        store = self.group.instances[number].stores["customer-balances"]
        return store.serving(store.partition_of(CARD.encode()))

    async def erasure_after(self, last: str) -> str:
        """The id of the event ``erased``, which must be the first one after this event."""
        async with self.stream(last=last) as stream:
            name, event_id, _ = await stream.next()
        assert "erased" == name
        return event_id

    async def refusal(self, number: int = 0, last: str | None = None, **headers: str) -> httpx.Response:
        async with self.stream(number, last, **headers) as stream, asyncio.timeout(20):
            await stream.response.aread()
            return stream.response


@asynccontextmanager
async def connected(size: int = 1, group: Group | None = None, owner: int = 0) -> AsyncIterator[Client]:
    """A client of these instances. One of them owns all partitions, and of two the other one is the standby."""
    cluster = group or Group.of(size)
    cluster.share(lambda _: owner, lambda _: 1 - owner if len(cluster.instances) > 1 else None)
    async with cluster.running():
        yield Client(cluster)
