"""What instances tell each other of the copies they hold: the group says who owns, only a holder how far it is."""

import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from services.state_stores.assignment import Role

_CAMEL_CASE = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class HeldPartition(BaseModel):
    """A copy of one store partition. Offsets are those of the changelog."""

    model_config = _CAMEL_CASE

    store: str = Field(examples=["customer-balances"])
    partition: Annotated[int, Field(ge=0)]
    role: Role = Field(description="active: owned, and all that the changelog had when it was taken is here.")
    restored: bool = Field(description="Whether reads are served from it.")
    position: int = Field(description="The next offset to apply.")
    end_offset: int = Field(description="One past the newest record known.")
    lag: Annotated[int, Field(ge=0, description="endOffset - position.")]


class InstanceReport(BaseModel):
    """An instance, by its own account."""

    model_config = _CAMEL_CASE

    url: str = Field(examples=["http://127.0.0.1:8080"])
    group: str = Field(description="The consumer group through which partitions are shared.", examples=["loyalty-api"])
    partitions: tuple[HeldPartition, ...]

    @cached_property
    def copies(self) -> dict[tuple[str, int], HeldPartition]:
        """By store and partition."""
        return {(each.store, each.partition): each for each in self.partitions}


class PeerReports:
    """The newest report of each other instance, and which of them do not answer. Any thread may ask and tell."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reports: Mapping[str, InstanceReport] = {}
        self._suspects: Mapping[str, str] = {}

    def of(self, url: str) -> InstanceReport | None:
        return self._reports.get(url)

    def why_suspect(self, url: str) -> str | None:
        """What went wrong when the instance was last asked for anything; None if it answered."""
        return self._suspects.get(url)

    def note(self, report: InstanceReport) -> None:
        """It answers: take it for well again."""
        with self._lock:
            self._reports = {**self._reports, report.url: report}
            self._suspects = {url: why for url, why in self._suspects.items() if url != report.url}

    def suspect(self, url: str, reason: str) -> None:
        """Ask others before this one until its next report. What it holds stays noted: it may be only slow."""
        with self._lock:
            self._suspects = {**self._suspects, url: reason}

    def keep_only(self, urls: Iterable[str]) -> None:
        """Forget whoever has left the group."""
        kept = frozenset(urls)
        with self._lock:
            self._reports = {url: report for url, report in self._reports.items() if url in kept}
            self._suspects = {url: why for url, why in self._suspects.items() if url in kept}
