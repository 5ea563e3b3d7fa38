"""Which instances to ask for a key, and the status of local copies."""

import asyncio
import time

import pytest

from api.routing.locator import Locator, Target
from api.routing.problems import Rebalancing
from schemas.topics import LOYALTY_BALANCES
from services.clock import boot_seconds
from services.interactive_queries.local import LocalInstance, ReplicaStatus
from services.interactive_queries.reports import HeldPartition, InstanceReport, PeerReports
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.assignment import Role
from services.state_stores.materialiser import LocalStores
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import NotServingError, StateStore, state_stores
from services.state_stores.task import StoreTask, TaskProgress
from services.state_stores.waiters import SequenceWaiters
from tests.support.clusters import URL, FakeFeed, FixedMembership, view

pytestmark = pytest.mark.anyio

B, C, D = (f"http://10.0.0.{number}:8080" for number in range(2, 5))
TOPIC = LOYALTY_BALANCES.name
ACTIVE, STANDBY = Role.ACTIVE, Role.STANDBY


class Scene:
    """This instance with a fixed membership. Partition 1 of the balances is requested."""

    def __init__(self, **membership: object) -> None:
        stores = state_stores(catalogue.stores(FolderSchemaIds()))
        self.membership = FixedMembership(**membership)  # type: ignore[arg-type]
        self.feed = FakeFeed()
        self.local = LocalInstance(LocalStores(stores, self.feed, SequenceWaiters()), self.membership, Settings())
        self.reports = PeerReports()
        self.locator = Locator(self.local, self.reports)
        self.store: StateStore = stores["customer-balances"]

    def hold(self, position: int = 5, target: int = 5, active_target: int | None = None) -> StoreTask:
        progress = TaskProgress(None, 0, position, 5, target, active_target=active_target, end_asked_at=boot_seconds())
        task = StoreTask(self.store.definition, 1, MemoryStorePartition(), "test", progress)
        self.store.add(task)
        return task

    def reported(self, url: str, position: int, *, restored: bool = True) -> None:
        held = HeldPartition(
            store="customer-balances",
            partition=1,
            role=STANDBY,
            restored=restored,
            position=position,
            end_offset=position,
            lag=0,
        )
        self.reports.note(InstanceReport(url=url, group="loyalty-api", partitions=(held,)))

    def targets(self) -> list[Target]:
        return self.locator.targets(self.store, 1)


def owned_by(owner: str, *others: str) -> object:
    return view({owner: [(TOPIC, 1)], **{url: [] for url in others}})


def test_the_owner_comes_first_and_then_copies_by_position() -> None:
    """Lags cannot be compared, because each instance knows another end offset."""
    scene = Scene(view=owned_by(B, C, D))
    scene.reported(C, 7)
    scene.reported(D, 9)
    scene.hold(position=8)

    assert [Target(B, ACTIVE), Target(D, STANDBY), Target(URL, STANDBY), Target(C, STANDBY)] == scene.targets()


def test_a_suspect_is_asked_last() -> None:
    """After its next report it is no longer a suspect."""
    scene = Scene(view=owned_by(B, C))
    scene.reported(C, 7)
    scene.reports.suspect(B, "no answer")
    assert [Target(C, STANDBY), Target(B, ACTIVE)] == scene.targets()

    scene.reported(B, 9)

    assert [Target(B, ACTIVE), Target(C, STANDBY)] == scene.targets()


def test_only_group_members_are_asked() -> None:
    """An old or forged report of another URL changes nothing."""
    scene = Scene(view=owned_by(B))
    scene.reported("http://169.254.169.254", 99)
    scene.reported(C, 9)

    assert [Target(B, ACTIVE)] == scene.targets()
    assert {B} == scene.locator.peers


async def test_the_group_is_asked_again_although_an_earlier_answer_arrives() -> None:
    """The coordinator was asked before the partition moved, so the earlier answer names the former owner."""
    scene = Scene(view=owned_by(B, C))
    membership, late = scene.membership, view({B: [(TOPIC, 1)], C: []}, boot_seconds())

    def refresh() -> None:
        membership.view = late
        new = view({B: [], C: [(TOPIC, 1)]}, boot_seconds())
        asyncio.get_running_loop().call_soon(setattr, membership, "view", new)

    membership.on_refresh = refresh
    await scene.locator.rediscover(time.monotonic() + 30)
    assert Target(C, ACTIVE) == scene.targets()[0]


def test_a_copy_that_is_not_restored_is_not_asked() -> None:
    """This holds for copies of peers and for the own copy."""
    scene = Scene(view=owned_by(B, C))
    scene.reported(C, 7, restored=False)
    scene.hold(position=3)

    assert [Target(B, ACTIVE)] == scene.targets()


def test_without_an_owner_the_copies_are_asked() -> None:
    """The former owner still has a copy."""
    scene = Scene(view=view({B: [], C: []}))
    assert [] == scene.targets()

    scene.reported(B, 7)

    assert [Target(B, STANDBY)] == scene.targets()
    with pytest.raises(Rebalancing):
        scene.locator.of_key(scene.store, b"C1")


def test_an_owner_by_an_old_view_is_asked_as_a_standby() -> None:
    """After a disconnect the last view still names this instance, although it has lost the partition."""
    scene = Scene(view=owned_by(URL))
    scene.hold()

    assert [Target(URL, STANDBY)] == scene.targets()


def test_before_the_first_view_no_owner_is_known() -> None:
    """Kafka Streams calls this NOT_AVAILABLE."""
    scene = Scene()

    assert [] == scene.targets()
    with pytest.raises(Rebalancing):
        scene.locator.of_key(scene.store, b"any")


def test_a_global_store_is_read_locally() -> None:
    """Each instance has all of it, and names itself."""
    scene = Scene(view=owned_by(B))
    stores = scene.local.stores.by_name["stores"]

    assert [Target(URL, ACTIVE)] == scene.locator.targets(stores, 0)
    assert scene.locator.of_key(stores, b"S1").active == URL


def status(scene: Scene) -> ReplicaStatus:
    return scene.local.status_of(scene.store, scene.store.serving(1))


def test_an_owner_with_a_valid_lease_is_active() -> None:
    """It owns the partition, its lease is valid, and it has all records from before its promotion."""
    scene = Scene(owned=frozenset({(TOPIC, 1)}))
    scene.hold(active_target=5)

    assert ReplicaStatus(ACTIVE, 1, 5, 0, lag_known=True) == status(scene)._replace(end_asked_at=0.0)
    assert not status(scene).stale


@pytest.mark.parametrize(
    ("membership", "active_target"),
    [
        ({"owned": frozenset({(TOPIC, 1)}), "lease_holds": False}, 5),  # paused or disconnected
        ({"owned": frozenset({(TOPIC, 1)})}, 6),  # promoted and not caught up
        ({"owned": frozenset({(TOPIC, 1)})}, None),  # the materialiser does not know it yet
        ({"owned": frozenset()}, 5),  # just revoked
    ],
)
def test_any_other_copy_is_a_standby(membership: dict[str, object], active_target: int | None) -> None:
    """Its responses are marked as stale."""
    scene = Scene(**membership)
    scene.hold(active_target=active_target)

    assert status(scene).role is STANDBY
    assert status(scene).stale


def test_a_global_copy_is_stale_while_kafka_is_away() -> None:
    """It may miss a record that other instances have, unless the broker has confirmed its end within a lease."""
    scene = Scene()
    store = scene.local.stores.by_name["stores"]
    now = boot_seconds()
    progress = TaskProgress(None, 0, 5, 5, 5, active_target=5, end_asked_at=now)
    task = StoreTask(store.definition, 0, MemoryStorePartition(), "test", progress)
    store.add(task)
    before = scene.local.status_of(store, store.serving(0))
    assert ReplicaStatus(ACTIVE, 0, 5, 0, lag_known=True, end_asked_at=now) == before

    progress.end_asked_at = now - scene.membership.lease_seconds - 1

    assert scene.local.status_of(store, store.serving(0)).stale
    assert scene.local.confirm(store, before).stale
    progress.end_asked_at = boot_seconds()
    assert not scene.local.status_of(store, store.serving(0)).stale
    task.note_end_offset(6, boot_seconds(), 0)
    assert scene.local.status_of(store, store.serving(0)).stale


def test_the_lease_is_checked_again_after_the_read() -> None:
    """A process that was paused during a read does not answer as the owner."""
    scene = Scene(owned=frozenset({(TOPIC, 1)}))
    scene.hold(active_target=5)
    before = status(scene)
    scene.membership.lease_holds = False

    assert scene.local.confirm(scene.store, before).role is STANDBY


def test_a_partition_that_is_restoring_or_elsewhere_is_not_read() -> None:
    """The read raises NotServingError, with the task if there is one."""
    scene = Scene()
    with pytest.raises(NotServingError) as error:
        status(scene)
    assert error.value.task is None

    task = scene.hold(position=3)
    with pytest.raises(NotServingError) as error:
        status(scene)
    assert error.value.task is task


@pytest.mark.parametrize(
    ("role", "lag", "known", "max_lag", "expected"),
    [
        (STANDBY, 9, True, None, True),
        (STANDBY, 9, False, None, True),
        (STANDBY, 9, True, 9, True),
        (STANDBY, 9, True, 8, False),
        (STANDBY, 0, True, 0, True),
        (STANDBY, 0, False, 0, False),  # the broker has not confirmed the end offset for too long
        (ACTIVE, 9, False, 0, True),
    ],
)
def test_a_copy_suffices_up_to_max_lag(role: Role, lag: int, known: bool, max_lag: int | None, expected: bool) -> None:  # noqa: FBT001
    """An active copy is always sufficient. An unknown lag is never within a limit."""
    assert expected is ReplicaStatus(role, 1, 5, lag, known).is_within(max_lag)


@pytest.mark.parametrize(
    ("role", "lag", "asked_at", "expected"),
    [(ACTIVE, 0, 9.0, True), (ACTIVE, 1, 9.0, False), (STANDBY, 0, 9.0, False), (ACTIVE, 0, 8.9, False)],
)
def test_only_an_owner_without_a_lag_knows_that_an_account_is_erased(
    role: Role,
    lag: int,
    asked_at: float,
    expected: bool,  # noqa: FBT001
) -> None:
    """It has all records up to an end offset that the broker reported after this moment."""
    assert expected is ReplicaStatus(role, 1, 5, lag, lag_known=True, end_asked_at=asked_at).has_all_before(9.0)


def test_the_report_contains_each_copy() -> None:
    """It has store, partition, role and offsets, in JSON that a peer can read, and why the instance lags."""
    scene = Scene(owned=frozenset({(TOPIC, 1)}))
    scene.hold(position=4, target=4, active_target=4)

    scene.feed.kafka_error = "the disk is full"

    report = InstanceReport.model_validate_json(scene.local.report().model_dump_json(by_alias=True))

    (held,) = report.partitions
    assert (report.url, report.group, report.kafka_error) == (URL, "loyalty-api", "the disk is full")
    assert (held.store, held.partition, held.role, held.restored) == ("customer-balances", 1, ACTIVE, True)
    assert (held.position, held.end_offset, held.lag) == (4, 5, 1)
