"""This instance's membership of the group: what it owns, until when it may say so, and who else is there."""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from services.boot_clock import boot_seconds
from services.interactive_queries.group import GroupView, view_of
from services.messaging import clients
from services.settings import Settings
from services.state_stores.assignment import Place

log = structlog.get_logger(__name__)

_POLL_SECONDS = 0.1
_REFRESH_SECONDS = 1.0
# After a rebalance the next view is wanted soon, and the coordinator may not be done with it.
_SOON_SECONDS = 0.1
_BROKER_SECONDS = 5.0
# A thread that serves no callback for this long is dead to the group (max.poll.interval.ms).
_LONGEST_SILENCE_MS = 30_000


class GroupMembership:
    """A member of the group that reads nothing: the group decides on ownership, the materialiser reads by itself.

    So a rebalance never touches what is being read, and a long write never delays a rebalance.

    The ownership is a lease. The coordinator gives a partition to somebody else when it has had no heartbeat for the
    session time-out, whether this process knows or not: it may be stopped, or cut off. So an owner is one that the
    coordinator has named as a member within half of that time; heartbeats come four times in it, and what remains is
    for an answer that was on its way.
    """

    def __init__(self, settings: Settings, url: str) -> None:
        self.group = f"{settings.topic_prefix}loyalty-api"
        self.url = url
        self.view: GroupView | None = None
        self.member_id: str | None = None
        self.rebalances = 0
        self._settings = settings
        self.lease_seconds = settings.session_timeout.total_seconds() / 2
        self._owned: frozenset[Place] = frozenset()
        self._confirmed_at = float("-inf")
        self._next_refresh = 0.0
        self._on_change: Callable[[], None] = lambda: None
        self._topics: Mapping[str, int] = {}
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    @property
    def places(self) -> list[Place]:
        """Every partition that the group shares out."""
        return [(topic, number) for topic, count in self._topics.items() for number in range(count)]

    @property
    def owned(self) -> frozenset[Place]:
        """What the group has given to this instance, as far as it has heard."""
        return self._owned

    @property
    def lease_holds(self) -> bool:
        """Whether the coordinator cannot have given it to anybody else yet."""
        return boot_seconds() - self._confirmed_at < self.lease_seconds

    @property
    def alive(self) -> bool:
        """Whether the thread lives, if it is meant to."""
        return self._thread.ident is None or self._thread.is_alive() or self._leaving.is_set()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call this, in the membership's thread, whenever what this instance owns or sees has changed."""
        self._on_change = callback

    def join(self, topics: Mapping[str, int]) -> None:
        """Enter the group to share these topics, which must exist; a second call does nothing."""
        if self._thread.ident is None and not self._leaving.is_set():
            self._topics = dict(topics)
            self._thread.start()

    def begin_to_leave(self) -> None:
        """Leave the group soon; returns at once, from a signal handler too."""
        self._leaving.set()

    def leave(self) -> None:
        """Leave the group; returns when the coordinator knows."""
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join()

    def refresh(self) -> None:
        """Ask the coordinator as soon as possible, rather than when it is time."""
        self._next_refresh = 0.0

    def _run(self) -> None:
        consumer = self._consumer()
        admin = clients.admin(self._settings, self.url)
        asked: tuple[float, Future[Any]] | None = None
        try:
            consumer.subscribe(
                list(self._topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            while not self._leaving.is_set():
                message = consumer.poll(_POLL_SECONDS)
                if message is not None and (error := message.error()):
                    log.warning("the group's member has met an error", error=error.str())
                if asked is None and boot_seconds() >= self._next_refresh:
                    self._next_refresh = boot_seconds() + _REFRESH_SECONDS
                    future = admin.describe_consumer_groups([self.group], request_timeout=_BROKER_SECONDS)[self.group]
                    asked = (boot_seconds(), future)
                elif asked and asked[1].done():
                    if not self._note(*asked, consumer.memberid()):
                        # After a restart of the only broker a client that has asked about a group before asks in vain.
                        admin = clients.admin(self._settings, self.url)
                    asked = None
        except Exception:
            log.exception("the membership died")
        finally:
            self._owned = frozenset()
            self._confirmed_at = float("-inf")
            consumer.close()
            self._on_change()

    def _consumer(self) -> Consumer:
        session = int(self._settings.session_timeout.total_seconds() * 1000)
        overrides: dict[str, clients.Option] = {
            "group.id": self.group,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session,
            "heartbeat.interval.ms": session // 4,
            "max.poll.interval.ms": max(session, _LONGEST_SILENCE_MS),
        }
        return clients.consumer(self._settings, self.url, **overrides)

    def _note(self, asked_at: float, future: "Future[Any]", member_id: str) -> bool:
        try:
            view = view_of(future.result(), asked_at, self.view)
        except KafkaException as error:
            log.warning("the group cannot be described", error=str(error))
            return False
        if view.has(member_id):
            self._confirmed_at = asked_at
        self.member_id = member_id
        changed = self.view is None or (view.members, view.stable) != (self.view.members, self.view.stable)
        self.view = view
        if not view.stable:
            self._next_refresh = min(self._next_refresh, boot_seconds() + _SOON_SECONDS)
        if changed:
            self._on_change()
        return True

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Paused at once: the materialiser reads, this member is here to be counted.
        ends = [TopicPartition(each.topic, each.partition, OFFSET_END) for each in partitions]
        consumer.incremental_assign(ends)
        consumer.pause(ends)
        self._change("partitions taken", partitions, self._owned | _places(partitions))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # First: nobody else gets them before this callback has returned.
        self._change("partitions given up", partitions, self._owned - _places(partitions))
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._change("partitions lost", partitions, self._owned - _places(partitions))
        consumer.incremental_unassign(partitions)

    def _change(self, event: str, partitions: list[TopicPartition], owned: frozenset[Place]) -> None:
        log.info(event, partitions=sorted(f"{each.topic}-{each.partition}" for each in partitions))
        self._owned = owned
        self.rebalances += 1
        self.refresh()
        self._on_change()


def _places(partitions: Iterable[TopicPartition]) -> frozenset[Place]:
    return frozenset((partition.topic, partition.partition) for partition in partitions)
