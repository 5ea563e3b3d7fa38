"""What a basket would earn by the loyalty programme as it is now; nothing is stored."""

import time
from dataclasses import replace
from datetime import datetime

import orjson

from api.http import problems
from services.domain.formats import to_milliseconds
from services.domain.programme import Programme, Programmes
from services.programmes.file import ProgrammeError, parse_programme
from services.state_stores.contract import StoreClosedError
from services.state_stores.definition import VersionedValue
from services.state_stores.store import NotServingError, StateStore
from services.state_stores.task import StoreTask

_MOST_VERSIONS = 10_000


class CurrentProgramme:
    """The programme in force, from the global store of all versions."""

    def __init__(self, store: StateStore, version_0: Programme) -> None:
        self._store = store
        self._version_0 = version_0
        self._parsed: dict[bytes, Programme] = {}

    def now(self) -> tuple[Programme, int]:
        """The version that decides an invoice that the broker appends now, and this machine's idea of now.

        The time is in milliseconds since the epoch. Raises Problem while the store is not restored, and for a
        version that cannot be read.
        """
        now = time.time_ns() // 1_000_000
        try:
            found = [stored for task in self._tasks() for _, stored in task.store.scan(b"", None, _MOST_VERSIONS)]
        except StoreClosedError as error:
            raise problems.Stopping from error
        return Programmes.of([self._version_0, *map(self._rules, found)]).at(now), now

    def _tasks(self) -> list[StoreTask]:
        tasks = self._store.tasks
        for number in range(self._store.definition.changelog.partitions):
            if number not in tasks or not tasks[number].progress.restored:
                raise problems.not_serving(NotServingError(number, tasks.get(number)))
        return list(tasks.values())

    def _rules(self, stored: bytes) -> Programme:
        if stored not in self._parsed:
            published = orjson.loads(VersionedValue.unpack(stored).body)
            effective_time = to_milliseconds(datetime.fromisoformat(published["EffectiveTime"]))
            try:
                rules = parse_programme(published["Programme"])
            except ProgrammeError as error:
                raise problems.ProgrammeUnreadable(published["Version"]) from error
            self._parsed[stored] = replace(rules, version=published["Version"], effective_time=effective_time)
        return self._parsed[stored]
