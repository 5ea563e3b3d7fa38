"""The status of a copy while its partition moves."""

from collections.abc import Callable, Mapping

import pytest

from services.interactive_queries.local import LocalInstance, ReplicaStatus
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.assignment import ChangelogPartition, Role
from services.state_stores.materialiser import LocalStores
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import StateStore
from services.state_stores.task import StoreTask, TaskProgress
from services.state_stores.waiters import SequenceWaiters
from tests.support.builders import IDS
from tests.support.clusters import FakeFeed, FixedMembership

DEFINITION = catalogue.stores(IDS)[0]
PLACE = (DEFINITION.changelog.name, 0)


class MovingMembership:
    """Another thread of this instance gets the partition again, at second 2, before the read with this number."""

    url, group, lease_seconds, view, lease_holds = "http://one", "loyalty-api", 4.0, None, True

    def __init__(self, moment: int) -> None:
        self._reads_before = moment

    def _has_moved(self) -> bool:
        self._reads_before -= 1
        return self._reads_before < 0

    @property
    def owned(self) -> frozenset[ChangelogPartition]:
        return frozenset({PLACE}) if self._has_moved() else frozenset()

    @property
    def assigned_at(self) -> Mapping[ChangelogPartition, float]:
        return {PLACE: 2.0 if self._has_moved() else 1.0}

    def on_change(self, _: Callable[[], None]) -> None: ...

    def refresh(self) -> None: ...


def status_of(progress: TaskProgress, membership: object) -> ReplicaStatus:
    """The status of the copy with this progress."""
    store = StateStore(DEFINITION)
    task = StoreTask(DEFINITION, 0, MemoryStorePartition(), "here", progress)
    store.add(task)
    stores = LocalStores({DEFINITION.name: store}, FakeFeed(), SequenceWaiters())
    return LocalInstance(stores, membership, Settings()).status_of(store, task)


@pytest.mark.parametrize("moment", range(3))
def test_a_copy_of_a_former_ownership_is_no_active_copy(moment: int) -> None:
    """The instance had all records of its first ownership, at second 1. Another owner may have written since then.

    The materialiser has not noticed the new ownership yet.
    """
    progress = TaskProgress(None, 0, 5, 5, 5, restored=True)
    progress.become(5, 1.0)

    assert Role.STANDBY is status_of(progress, MovingMembership(moment)).role


class Growing(TaskProgress):
    """The broker answers just after the lag is read: the changelog has a record more."""

    @property
    def lag(self) -> int:
        found = max(0, self.end_offset - self.position)
        self.end_offset, self.end_asked_at = 6, 2.0
        return found


def test_a_lag_does_not_come_from_an_older_answer_than_its_time() -> None:
    """Otherwise the copy would say that it has all records of that time, and that an account is erased."""
    status = status_of(Growing(None, 0, 5, 5, 5, end_asked_at=1.0), FixedMembership())

    assert (0, 1.0) == (status.lag, status.end_asked_at)
