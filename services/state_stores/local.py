"""The stores of this process, as the API sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from services.state_stores.store import StateStore
from services.state_stores.waiters import SequenceWaiters


class Feed(Protocol):
    """What keeps the stores up to date (see ``Materialiser``).

    Attributes:
        kafka_error: what keeps it from following the changelogs now; None while all is well.
    """

    kafka_error: str | None

    @property
    def alive(self) -> bool: ...

    @property
    def restored(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalStores:
    """Stores by name, what feeds them, and who waits for them."""

    by_name: Mapping[str, StateStore]
    feed: Feed
    waiters: SequenceWaiters
