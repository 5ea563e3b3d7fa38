"""The reports of instances about their copies. The group knows only the owners."""

import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from services.state_stores.assignment import Role

_CAMEL_CASE = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

WhyNotFollowing = Annotated[
    str | None,
    Field(
        description="Why the instance cannot follow Kafka now, for example because its disk is full, or because its "
        "group refuses it. null: it can."
    ),
]


class HeldPartition(BaseModel):
    """A copy of one store partition. Offsets are offsets of the changelog."""

    model_config = _CAMEL_CASE

    store: str = Field(examples=["customer-balances"])
    partition: Annotated[int, Field(ge=0)]
    role: Role = Field(
        description="active: this instance owns the partition, and has all records from before it became the owner."
    )
    restored: bool = Field(description="Whether the copy serves reads.")
    position: int = Field(description="The next offset to apply.")
    end_offset: int = Field(description="The last known end offset of the changelog.")
    lag: Annotated[int, Field(ge=0, description="endOffset - position.")]


class InstanceReport(BaseModel):
    """What an instance reports about itself."""

    model_config = _CAMEL_CASE

    url: str = Field(examples=["http://127.0.0.1:8080"])
    group: str = Field(description="The consumer group that distributes the partitions.", examples=["loyalty-api"])
    partitions: tuple[HeldPartition, ...]
    kafka_error: WhyNotFollowing = None

    @cached_property
    def copies(self) -> dict[tuple[str, int], HeldPartition]:
        """The copies by store and partition."""
        return {(each.store, each.partition): each for each in self.partitions}


class PeerReports:
    """The newest report of each peer, and the peers that did not answer. Any thread may read and write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reports: Mapping[str, InstanceReport] = {}
        self._suspects: Mapping[str, str] = {}

    def of(self, url: str) -> InstanceReport | None:
        return self._reports.get(url)

    def why_suspect(self, url: str) -> str | None:
        """The error of the last request to this peer; None if it has answered."""
        return self._suspects.get(url)

    def note(self, report: InstanceReport) -> None:
        """Store a report. Its sender is no longer a suspect."""
        with self._lock:
            self._reports = {**self._reports, report.url: report}
            self._suspects = {url: why for url, why in self._suspects.items() if url != report.url}

    def suspect(self, url: str, reason: str) -> None:
        """Ask this peer last until its next report. Its last report stays, because the peer may only be slow."""
        with self._lock:
            self._suspects = {**self._suspects, url: reason}

    def keep_only(self, urls: Iterable[str]) -> None:
        """Forget the instances that have left the group."""
        kept = frozenset(urls)
        with self._lock:
            self._reports = {url: report for url, report in self._reports.items() if url in kept}
            self._suspects = {url: why for url, why in self._suspects.items() if url in kept}
