"""The work of operators over HTTP. It uses the functions of the command line. They block, so threads run them."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from anyio import CancelScope
from cachetools import TTLCache
from confluent_kafka import KafkaException
from starlette.concurrency import run_in_threadpool

from api.http.problems import NotFound, Problem, Unavailable, Unprocessable
from schemas.topics import LOYALTY
from services.audit import runs
from services.messaging import dead_letters, replaying
from services.messaging.access import user_of
from services.messaging.avro import Record
from services.messaging.dead_letters import (
    Age,
    DeadLetter,
    DeadLetterFacts,
    DeadLetterFilter,
    DeadLettersError,
    RecordPosition,
)
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.messaging.topic_reader import UndecodableRecordError
from services.programmes.topic import UncertainPublicationError, Version, publish_programme
from services.settings import Settings
from services.status import ApiState, default_urls, status_of
from services.status_figures import Rates, Status, rates_between

_FRESH_SECONDS = 2.0
"""All callers within this time get the same status, so many callers cost no more than one."""

_LETTERS_SECONDS = 10.0
"""All callers within this time get the same dead letters, because each read of them reads the whole topic."""

_MOST_KEPT_RESULTS = 4
_MOST_KEPT_LETTERS = 100
"""Larger results are not kept, because a kept result can stay in memory until the next request."""

_SHOWN_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Excerpt(DeadLetterFacts):
    """The part of a dead letter that operators see. A whole dead letter can have 15 MiB.

    Attributes:
        key, value: the first 4,096 bytes.
        size: bytes of the whole value.
    """

    key: bytes | None
    value: bytes
    size: int

    @classmethod
    def of(cls, letter: DeadLetter) -> "Excerpt":
        value = letter.value or b""
        return cls(
            letter.position,
            letter.time,
            letter.topic,
            letter.origin,
            letter.reason,
            letter.key and letter.key[:_SHOWN_BYTES],
            value[:_SHOWN_BYTES],
            len(value),
        )


class UnknownDeadLetter(
    NotFound, code="unknown-dead-letter", title="No such dead letter", example={"positions": ["0:42"]}
):
    """There is no dead letter at {positions}. Nothing was published. Read the list again."""


class ReplayNeedsPipeline(
    Unprocessable,
    code="replay-needs-pipeline",
    title="Only the user pipeline may publish these dead letters",
    example={"topic": "loyalty"},
):
    """On this secured Kafka, the API may not write to the topic {topic}. Nothing was published. Leave out the dead
    letters of this topic. The user pipeline can publish them with `loyalty dead-letters replay`.
    """


class InvalidProgramme(
    Unprocessable,
    code="invalid-programme",
    title="The programme is not valid",
    example={"problems": [{"line": 3, "path": "tiers", "message": "should be a list"}], "reason": "line 3, tiers"},
):
    """The programme was not published. Correct the file or the time: {reason}."""


class BrokerUnavailable(
    Unavailable,
    code="broker-unavailable",
    title="Kafka does not answer",
    retry_after=5,
    example={"reason": "no Kafka broker answers at 127.0.0.1:9092"},
):
    """The operation needs Kafka: {reason}. Repeat the request later."""


class PublicationUncertain(
    Problem,
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    code="publication-uncertain",
    title="The version may be published",
    example={"reason": "version 3 is committed, but readers do not get it: no Kafka broker answers at 127.0.0.1:9092"},
):
    """{reason}. Look whether the store programmes has the version before you publish it again, because each publication
    makes a new version.
    """


NewestDeadLetters = tuple[Counter[str], list[Excerpt]]
"""The number of dead letters for each reason, and the newest of them."""


class _Turns:
    """Lets only one request at a time read Kafka, so that the reads never use all threads of the app.

    Without Kafka a read takes ten seconds. So all requests that waited for a failed read get the same problem.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._failed_time = -math.inf
        self._members: Mapping[str, Any] = {}

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn of this request. Raises BrokerUnavailable."""
        asked_time = time.monotonic()
        async with self._lock:
            if self._failed_time > asked_time:
                raise BrokerUnavailable(**self._members)
            try:
                yield
            except BrokerUnavailable as problem:
                self._failed_time, self._members = time.monotonic(), problem.members
                raise


class Operations:
    """The operations of one instance. All methods but ``status`` raise BrokerUnavailable if Kafka does not answer."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = asyncio.Lock()
        self._latest: tuple[float, Status, Rates | None] | None = None
        self._letters, self._audits = _Turns(), _Turns()
        self._newest_letters: TTLCache[tuple[str | None, int, Age | None], NewestDeadLetters] = TTLCache(
            _MOST_KEPT_RESULTS, _LETTERS_SECONDS
        )

    async def status(self, api: ApiState) -> tuple[Status, Rates | None]:
        """The state of the system, and the rates since the previous state; None without a previous state.

        ``api`` is the state of this instance.
        """
        async with self._lock:
            before = self._latest
            if before and time.monotonic() - before[0] < _FRESH_SECONDS:
                return before[1:]
            # If the client of a stream leaves, this still waits for the thread, so the next read starts after this one.
            # While the database of the ledger hangs, its routes fill the threads of run_in_threadpool.
            with CancelScope(shield=True):
                found = await asyncio.to_thread(status_of, self.settings, default_urls(self.settings), api)
            rates = rates_between(before[1], found) if before else None
            self._latest = time.monotonic(), found, rates
            return found, rates

    def select(
        self, positions: Collection[RecordPosition], since: int
    ) -> tuple[Iterable[DeadLetter], Counter[str], int]:
        """The dead letters at these positions, their number for each original topic, and the number of those left out.

        Each iteration reads the dead letters from Kafka again, because all of them may not fit into memory.

        Args:
            since: leave out records that first became dead letters before this time (see ``replaying.replayed_since``).

        Raises:
            UnknownDeadLetter: one of the positions has no dead letter.
            ReplayNeedsPipeline: one of them belongs to a webhook, and the user of this process may not publish it.
        """
        with _broker_problems():
            letters = dead_letters.DeadLetters(self.settings, DeadLetterFilter(None, positions))
            found, _, missing, left_out = replaying.select(self.settings, letters, positions, since)
        if missing:
            raise UnknownDeadLetter(positions=[str(each) for each in missing])
        # Otherwise Kafka would refuse only these records, after others are published.
        if (
            self.settings.kafka_sasl_username == user_of("api", self.settings)
            and (topic := self.settings.name_of(LOYALTY)) in found
        ):
            raise ReplayNeedsPipeline(topic=topic)
        return letters, found, left_out

    async def newest_dead_letters(self, reason: str | None, most: int, before: Age | None = None) -> NewestDeadLetters:
        """The number of dead letters for each reason, and at most ``most`` of the newest ones.

        ``reason`` is a text that their reason contains; None accepts every reason. See ``newest_of`` for ``before``.
        """
        async with self._letters.turn():
            found = self._newest_letters.get((reason, most, before))
            if found is None:
                found = await run_in_threadpool(self._read_newest, DeadLetterFilter(reason), most, before)
                if most <= _MOST_KEPT_LETTERS:
                    self._newest_letters[reason, most, before] = found
            return found

    def _read_newest(self, letter_filter: DeadLetterFilter, most: int, before: Age | None) -> NewestDeadLetters:
        with _broker_problems():
            letters = dead_letters.DeadLetters(self.settings, letter_filter)
            return dead_letters.newest_of(map(Excerpt.of, letters), most, before)

    async def audits(self) -> list[Record]:
        """The runs of the audit, the newest first."""
        async with self._audits.turn():
            with _broker_problems():
                return await run_in_threadpool(runs.read_runs, self.settings)

    def replay(self, letters: Iterable[DeadLetter], destinations: Iterable[str], since: int) -> int:
        """Publish the original records again, to these topics. Returns their number. See ``select`` for ``since``."""
        with _broker_problems():
            return replaying.replay(self.settings, letters, destinations, since)

    def publish_programme(self, text: str, effective_time: int | None) -> Version:
        """Publish the next version.

        Raises:
            ProgrammeError: the file or the time is not valid, or another publisher was faster.
            PublicationUncertain: Kafka may have the version.
        """
        with _broker_problems():
            try:
                return publish_programme(text, self.settings, effective_time)
            except UncertainPublicationError as error:
                raise PublicationUncertain(reason=str(error)) from error


_ERRORS = (DeadLettersError, PublishError, KafkaException, SchemaRegistryUnavailableError, UndecodableRecordError)


@contextmanager
def _broker_problems() -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise BrokerUnavailable(reason=str(error)) from error
