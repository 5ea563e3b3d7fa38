"""Which changelog partitions an instance holds, and in which role."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Protocol

ChangelogPartition = tuple[str, int]
"""The name of a topic on the broker, and the number of a partition."""


class Role(StrEnum):
    """The role of a local copy of a partition."""

    ACTIVE = "active"
    STANDBY = "standby"


class Assignment(Protocol):
    """Decides which partitions this instance holds. The materialiser calls it from its thread."""

    def attach(self, topics: Mapping[str, int]) -> None:
        """Join the group, which distributes the partitions of these topics (name to number of partitions).

        A second call does nothing.
        """

    @property
    def alive(self) -> bool:
        """Whether it still follows changes of the assignment."""

    @property
    def error(self) -> str | None:
        """Why the group does not accept this instance; None if it does, or if no reason is known."""

    @property
    def settled(self) -> bool:
        """Whether this instance knows all partitions that it owns. There may be none."""

    def holdings(self, held: Collection[ChangelogPartition]) -> Mapping[ChangelogPartition, Role]:
        """The partitions that this instance must hold now; ``held`` are the partitions that it holds already."""

    @property
    def can_hand_over(self) -> bool:
        """Whether another instance follows its changelogs, and can take the partitions of this one."""

    def leave(self) -> None:
        """Give all partitions back. Returns when other instances can take them."""
