"""Which partitions an instance holds, and in which role. The materialiser asks nobody else."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Protocol

Place = tuple[str, int]
"""A partition: the topic's name on the broker, and its number."""


class Role(StrEnum):
    """What a local copy of a partition is."""

    ACTIVE = "active"
    STANDBY = "standby"


class Assignment(Protocol):
    """Decides the partitions of this instance. Called from the materialiser's thread."""

    def attach(self, topics: Mapping[str, int]) -> None:
        """Begin to share these topics (name to number of partitions); called again it does nothing."""

    @property
    def alive(self) -> bool:
        """Whether it still follows who holds what."""

    @property
    def settled(self) -> bool:
        """Whether this instance has what it is due: perhaps nothing."""

    def holdings(self, held: Collection[Place]) -> Mapping[Place, Role]:
        """What this instance is to hold now, given what it holds."""

    def leave(self) -> None:
        """Give everything back; returns when the others may take it."""
