"""The work of operators over HTTP, with the functions of the command line. They block, so threads run them."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import nlargest

from cachetools import TTLCache
from confluent_kafka import KafkaException
from starlette.concurrency import run_in_threadpool

from api.http import problems
from services.audit import runs
from services.messaging import dead_letters
from services.messaging.avro import Record, UndecodableError
from services.messaging.dead_letters import DeadLetter, DeadLetterFilter, DeadLettersError
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import UnknownSchemaIdError
from services.programmes.topic import Version, publish_programme
from services.settings import Settings
from services.status import ApiState, Rates, Status, default_urls, rates_between, status_of

_FRESH_SECONDS = 2.0
"""All callers within this time get the same status, so many callers cost no more than one."""

_LETTERS_SECONDS = 10.0
"""The same for dead letters. Each read of them reads the whole topic."""
_MOST_KEPT, _MOST_LETTERS = 4, 100
"""Results and dead letters of a result that are kept. A dead letter can have 15 MiB."""

NewestDeadLetters = tuple[Counter[str], list[DeadLetter]]
"""The number of dead letters for each reason, and the newest of them."""


class Operations:
    """The operations of one instance. Its methods raise BrokerUnavailable if Kafka does not answer."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = asyncio.Lock()
        self._latest: tuple[float, Status, Rates | None] | None = None
        self._letters_lock = asyncio.Lock()
        self._newest_letters: TTLCache[tuple[str | None, int], NewestDeadLetters] = TTLCache(
            _MOST_KEPT, _LETTERS_SECONDS
        )

    async def status(self, api: ApiState) -> tuple[Status, Rates | None]:
        """The state of the system, and the rates since the state before; None for the first one.

        Args:
            api: the state of this instance.
        """
        async with self._lock:
            before = self._latest
            if before and time.monotonic() - before[0] < _FRESH_SECONDS:
                return before[1:]
            found = await asyncio.to_thread(status_of, self.settings, default_urls(self.settings), api)
            rates = rates_between(before[1], found) if before else None
            self._latest = time.monotonic(), found, rates
            return found, rates

    def dead_letters(self, letter_filter: DeadLetterFilter) -> list[DeadLetter]:
        """The dead letters that the filter selects."""
        with _broker_problems():
            return list(dead_letters.DeadLetters(self.settings, letter_filter))

    async def newest_dead_letters(self, reason: str | None, most: int) -> NewestDeadLetters:
        """The number of dead letters for each reason, and at most this number of the newest ones.

        Args:
            reason: a text that the reason contains; None accepts every reason.
        """
        async with self._letters_lock:
            found = self._newest_letters.get((reason, most))
            if found is None:
                found = await run_in_threadpool(self._read_newest, DeadLetterFilter(reason), most)
                if most <= _MOST_LETTERS:
                    self._newest_letters[reason, most] = found
            return found

    def _read_newest(self, letter_filter: DeadLetterFilter, most: int) -> NewestDeadLetters:
        reasons = Counter[str]()

        def counted() -> Iterator[DeadLetter]:
            for letter in dead_letters.DeadLetters(self.settings, letter_filter):
                reasons[letter.reason] += 1
                yield letter

        with _broker_problems():
            return reasons, nlargest(most, counted(), key=lambda letter: (letter.time, letter.position))

    def audits(self) -> list[Record]:
        """The runs of the audit, the newest first."""
        with _broker_problems():
            return runs.read_runs(self.settings)

    def replay(self, letters: Sequence[DeadLetter]) -> int:
        """Publish the original records again. Returns their number."""
        with _broker_problems():
            return dead_letters.replay(self.settings, letters)

    def publish_programme(self, text: str, effective_time: int | None) -> Version:
        """Publish the next version. Raises ProgrammeError too."""
        with _broker_problems():
            return publish_programme(text, self.settings, effective_time)


@contextmanager
def _broker_problems() -> Iterator[None]:
    try:
        yield
    except (DeadLettersError, PublishError, KafkaException, UndecodableError, UnknownSchemaIdError) as error:
        raise problems.BrokerUnavailable(reason=str(error)) from error
