"""The stream of the revisions of one balance, from any copy of its partition.

Every copy applies the same changelog, so each copy can continue the stream of another. ``Last-Event-ID`` is the last
revision that the client has received. A stream never sends this revision or an older one.

the copy may be behind the client             ──► ask Kafka for the end of the changelog, then decide
the copy has this revision, or an older one   ──► nothing was missed: wait for the next records
the changelog still has this revision          ──► send the records after it. Compaction has not cleaned this part of
                                                    the changelog yet, so all of them are there
the changelog does not have it any more        ──► ``gap``, and the current balance
the read of the changelog would take too long  ──► ``gap``, and the current balance
"""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

import orjson
from confluent_kafka import KafkaException
from fastapi import Request, Response

from api.events.streams import HEARTBEAT, HEARTBEAT_SECONDS, START, Event, EventStreams, T
from api.http.parameters import LARGEST_SEQUENCE
from api.http.problems import InvalidParameters, Problem
from api.routing.locator import Locator
from api.routing.lookup import KeyRead, Lookup
from api.routing.peer_client import PeerClient
from api.routing.peer_messages import PeerError, PeerRequest, PeerResponse, no_answer, role_in
from api.routing.problems import ANOTHER_MAY_ANSWER, UnknownCustomer
from api.security.caller import Caller
from api.security.permissions import MOVED, caller_of, moved
from services.clock import boot_seconds
from services.interactive_queries.local import LocalInstance
from services.messaging.avro import UndecodableError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.state_stores.contract import StoreError
from services.state_stores.definition import StoreDefinition, VersionedValue
from services.state_stores.store import NotServingError, StateStore
from services.state_stores.task import ChangelogRecord, StoreTask

History = Callable[[StoreDefinition, int, bytes, range], list[ChangelogRecord]]
"""Reads the records of a key between two offsets of a changelog partition (see ``read_key``)."""

_ID = re.compile(r"(\d{1,19})\.(\d{1,19})(?:\.(\d{1,19}))?", re.ASCII)
_MOST_HISTORIES_AT_ONCE = 4
"""How many reads of the changelog run at the same time. Each of them has a consumer of its own."""
_LONGEST_HISTORY = 200_000
"""The most offsets that are read for one client. A record takes 2 to 3 microseconds of a core. So the longest read
takes half a second of a core, and the time of the network.
"""


class EventId(NamedTuple):
    """The id of an event: the last revision that a client has received.

    Attributes:
        opened_time: when the account was opened, in milliseconds since the epoch; 0 if the record does not have it.
        sequence: the sequence of the balance; ``LARGEST_SEQUENCE`` for the event ``erased``.
        offset: the offset of the changelog record; None if the client does not know it.
    """

    opened_time: int
    sequence: int
    offset: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The id of an event, or the two numbers of an entity tag of the balance. Raises InvalidParameters."""
        match = _ID.fullmatch(text)
        if match is None:
            reason = "is not an id of this stream: send the id of the last event, or none"
            raise InvalidParameters(errors=[{"in": ["header", "Last-Event-ID"], "reason": reason}])
        opened_time, sequence, offset = match.groups()
        return cls(int(opened_time), int(sequence), int(offset) if offset else None)

    @property
    def is_of_erasure(self) -> bool:
        return self.sequence == LARGEST_SEQUENCE

    @property
    def version(self) -> tuple[int, int]:
        return self.opened_time, self.sequence

    def __str__(self) -> str:
        return ".".join(str(each) for each in self if each is not None)


class _Revisions:
    """Makes the events of one client from changelog records. Omits the revisions that the client has."""

    def __init__(self, definition: StoreDefinition, last: EventId | None, caller: Caller) -> None:
        self._view = definition.view
        self._caller = caller
        self._version = last.version if last else (0, 0)
        # The client has everything up to this offset. The version alone does not say so: a deletion has none, and a
        # store that is rebuilt reads old records again.
        self._offset = -1
        # A rebuild writes a balance of the same account after a deletion. Only its offset says that it is newer.
        self._erased_at = last.offset if last and last.is_of_erasure else None

    def has(self, value: VersionedValue) -> bool:
        return value.version <= self._version and (self._erased_at is None or value.offset <= self._erased_at)

    def skip_to(self, offset: int) -> None:
        """Ignore the records up to this offset."""
        self._offset = max(self._offset, offset)

    def current(self, value: VersionedValue | None, position: int) -> Event:
        """The event of the current balance. ``position`` is the next offset that the store will apply."""
        if value is None:
            return self._erased(position - 1)
        return self._balance(value)

    def of(self, record: ChangelogRecord) -> Event | None:
        """The event of a record; None if the client has it, or if the store ignores the record."""
        if record.offset <= self._offset:
            return None
        if record.value is None:
            return self._erased(record.offset)
        value = self._value(record.value, record)
        return None if value is None or self.has(value) else self._balance(value)

    def after(self, records: Sequence[ChangelogRecord]) -> list[Event] | None:
        """The events after the first of these records; None if the first one is not the last that the client has."""
        if not self._is_last(records[0]):
            return None
        return [event for record in records[1:] if (event := self.of(record))]

    def _is_last(self, record: ChangelogRecord) -> bool:
        """Whether this record can be that of the last event that the client has received."""
        value = None if record.value is None else self._value(record.value, record)
        return record.value is None or (value is not None and value.version == self._version)

    def _value(self, body: bytes, record: ChangelogRecord) -> VersionedValue | None:
        try:
            view = self._view(record.key or b"", body)
        except UndecodableError:
            return None
        return VersionedValue(view.sequence or 0, record.offset, record.append_time, view.body, view.opened_time)

    def _balance(self, value: VersionedValue) -> Event:
        self._version, self._erased_at = value.version, None
        self.skip_to(value.offset)
        name, data = "balance", value.body
        if MOVED in data:
            problem = moved(self._caller, orjson.loads(data)["MovedTo"])
            name, data = problem.code, orjson.dumps(problem.members)
        return Event(name, data, str(EventId(value.opened_time, value.sequence, value.offset)))

    def _erased(self, offset: int) -> Event:
        self.skip_to(offset)
        self._version, self._erased_at = (self._version[0], LARGEST_SEQUENCE), max(0, offset)
        return Event("erased", b"{}", str(EventId(*self._version, self._erased_at)))


class BalanceEvents:
    """Streams the revisions of balances."""

    def __init__(
        self,
        local: LocalInstance,
        locator: Locator,
        peers: PeerClient,
        lookup: Lookup,
        streams: EventStreams,
        history: History,
    ) -> None:
        self._local = local
        self._locator = locator
        self._peers = peers
        self._lookup = lookup
        self._streams = streams
        self._history = history
        # In the threads of asyncio, reads of old records would delay the publication of commands.
        self._readers = ThreadPoolExecutor(_MOST_HISTORIES_AT_ONCE, "histories")

    async def open(self, request: Request, store: StateStore, key: bytes, last: EventId | None) -> Response:
        """Open a stream at the owner of the key, or at a standby if the owner does not answer. Raises Problem."""
        read = KeyRead(store, key)
        if role_in(request):
            return await self._stream_local(request, read, last)
        failures: dict[str, PeerError] = {}
        refusals: list[PeerResponse] = []
        targets = self._locator.targets(store, read.partition)
        if self._local.owns(store, read.partition):
            targets.sort(key=lambda target: target.url != self._local.url)
        for target in targets:
            if target.url == self._local.url:
                try:
                    return await self._stream_local(request, read, last)
                except Problem as problem:
                    found = PeerResponse.from_problem(problem)
            else:
                try:
                    opened = await self._peers.open_stream(await PeerRequest.from_client(request), target)
                except PeerError as error:
                    failures[target.url] = error
                    continue
                if not isinstance(opened, PeerResponse):
                    return self._streams.response(request, self._relay(opened.parts()), opened.close)
                found = opened
            if found.problem_code not in ANOTHER_MAY_ANSWER:
                return found.response()
            refusals.append(found)
        if not refusals:
            raise no_answer(read.partition, dict(sorted(failures.items())))
        return refusals[0].response()

    async def _stream_local(self, request: Request, read: KeyRead, last: EventId | None) -> Response:
        """The stream of the local copy. Raises Problem."""
        found = await self._lookup.query_local(read)
        if found.value is None and last is None:
            raise found.with_freshness(UnknownCustomer())
        return self._streams.response(request, self._events(read, last, caller_of(request)))

    async def _relay(self, parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """The bytes of a peer's stream. The peer sends heartbeats, so a silent peer is dead."""
        try:
            while True:
                yield await self._streams.step(anext(parts), 3 * HEARTBEAT_SECONDS)
        except (StopAsyncIteration, TimeoutError, PeerError):
            return
        finally:
            await parts.aclose()

    async def _events(self, read: KeyRead, last: EventId | None, caller: Caller) -> AsyncGenerator[bytes]:
        store, key = read.store, read.key
        # The follower is registered before the first read, so no record between them is missed.
        with self._local.stores.waiters.follow(store.definition.changelog.name, key) as follower:
            yield START
            is_owner = self._local.owns(store, read.partition)
            revisions = _Revisions(store.definition, last, caller)
            try:
                task = store.serving(read.partition)
                if last is None:
                    position = task.progress.position  # before the value, as in _missed
                    yield revisions.current(task.get(key), position).encode()
                else:
                    for event in await self._missed(revisions, task, key, last):
                        yield event.encode()
                while store.serving(read.partition) is task and not follower.overflowed:
                    if is_owner and not self._local.owns(store, read.partition):
                        return
                    for record in follower.take():
                        if event_of_record := revisions.of(record):
                            yield event_of_record.encode()
                    try:
                        await self._streams.step(follower.woken.wait())
                    except TimeoutError:
                        yield HEARTBEAT
            except (NotServingError, StoreError, KafkaException, SchemaRegistryUnavailableError, TimeoutError):
                return  # The client connects again. Then it gets another copy, or this one if it serves again.

    async def _missed(self, revisions: _Revisions, task: StoreTask, key: bytes, last: EventId) -> Sequence[Event]:
        """The events after the last one of the client. Raises KafkaException and TimeoutError."""
        await self._wait_until_known(task, key, last)
        # The position is read before the value. Otherwise a record that the store applies in between would be skipped.
        position, value, end = task.progress.position, task.get(key), task.progress.end_offset
        gap = Event("gap", orjson.dumps({"after": str(last)}))
        if last.offset is not None and last.offset < end:
            revisions.skip_to(last.offset)
            if last.offset >= position:
                # This copy is behind the client. The follower delivers what the client has not received yet.
                return []
        elif value is None and (last.offset is not None or end == 0):
            # The topic was created again. So this copy cannot say that the account is erased.
            return [gap]
        if value is not None and revisions.has(value):
            revisions.skip_to(value.offset)
            return []
        if last.offset is not None:
            records = await self._read_history(task, key, range(last.offset, position))
            # The decoder asks the Schema Registry for a schema that this process has not used yet. So a thread decodes.
            if records and (missed := await self._in_thread(revisions.after, records)) is not None:
                return missed
        knows_erasure = value is None and last.is_of_erasure
        return [] if knows_erasure else [gap, revisions.current(value, position)]

    async def _wait_until_known(self, task: StoreTask, key: bytes, last: EventId) -> None:
        """Wait until it is known whether this copy is behind the client.

        With an offset, an older end offset does not say whether this copy is behind, or the topic was created again.
        Without an offset, only a copy that is not behind can say that the account is erased. Raises TimeoutError if
        Kafka does not answer, or if a copy without the revision of such a client does not catch up.
        """
        progress, now = task.progress, boot_seconds()

        def is_known() -> bool:
            if last.offset is not None:
                return progress.end_offset > last.offset or progress.end_asked_at > now
            value = task.get(key)
            has_revision = value is not None and value.version >= last.version
            return has_revision or (progress.end_asked_at > now and progress.lag == 0)

        await self._streams.step(self._local.stores.waiters.wait(key, is_known, bool, math.inf))

    async def _read_history(self, task: StoreTask, key: bytes, span: range) -> Sequence[ChangelogRecord]:
        """The records of the key in these offsets. Raises KafkaException.

        Empty if there are too many offsets, or if the read takes too long.
        """
        if len(span) > _LONGEST_HISTORY:
            return []
        try:
            # The time limit includes the wait for a free thread. If the stream were silent for longer, the instance
            # that forwards it would close it. The client would connect again, and start the same read.
            return await self._in_thread(self._history, task.definition, task.partition, key, span)
        except TimeoutError:
            return []

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await self._streams.step(asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments))
