"""The versions of the loyalty programme, from the global store ``programmes``."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

import orjson

from api.http.problems import Unavailable
from api.routing.problems import from_store_error
from services.domain.formats import to_milliseconds
from services.domain.programme import Programme, Programmes
from services.programmes.file import ProgrammeError, parse_programme
from services.state_stores.contract import StoreError
from services.state_stores.definition import VersionedValue
from services.state_stores.store import NotServingError, StateStore

_MOST_VERSIONS = 10_000


class ProgrammeUnreadable(
    Unavailable,
    code="programme-unreadable",
    title="The programme cannot be read",
    retry_after=60,
    example={"version": 4},
):
    """This instance does not understand version {version} of the programme. Ask the operator to upgrade it."""


class CurrentProgramme:
    """Reads the global store of all versions of the programme."""

    def __init__(self, store: StateStore, version_0: Programme) -> None:
        self._store = store
        self._version_0 = version_0
        self._parsed: dict[bytes, Programme] = {}
        self._checks = asyncio.Lock()

    async def check(self, text: str) -> None:
        """Raise ProgrammeError unless the text is a valid programme file.

        A large file takes seconds of Python, so a thread checks it. The app checks one file at a time, so that other
        requests get processor time.
        """
        async with self._checks:
            await asyncio.to_thread(parse_programme, text)

    async def versions(self) -> Programmes:
        """All versions of the programme.

        Raises Problem while the store is restoring, and for a version that this instance cannot parse.
        """
        try:
            tasks = [self._store.serving(number) for number in range(self._store.partitions)]
            entries = [stored for task in tasks for _, stored in task.store.scan(b"", None, _MOST_VERSIONS)]
        except (NotServingError, StoreError) as error:
            raise from_store_error(error, 0) from error
        if not self._parsed.keys() >= set(entries):
            async with self._checks:
                await asyncio.to_thread(self._parse, entries)
        return Programmes.of([self._version_0, *(self._parsed[stored] for stored in entries)])

    def _parse(self, entries: Iterable[bytes]) -> None:
        for stored in entries:
            if stored in self._parsed:
                continue
            published = orjson.loads(VersionedValue.unpack(stored).body)
            effective_time = to_milliseconds(datetime.fromisoformat(published["EffectiveTime"]))
            try:
                rules = parse_programme(published["Programme"], is_published=True)
            except ProgrammeError as error:
                raise ProgrammeUnreadable(version=published["Version"]) from error
            self._parsed[stored] = replace(rules, version=published["Version"], effective_time=effective_time)
