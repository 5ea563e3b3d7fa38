"""The membership of this instance in the consumer group: its partitions, its lease, and the other members."""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4, uuid5

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from services.clock import boot_seconds
from services.errors import SettingsError
from services.interactive_queries.group import GroupView, is_url, view_of
from services.messaging import clients
from services.settings import Settings
from services.state_stores.assignment import ChangelogPartition

log = structlog.get_logger(__name__)

_POLL_SECONDS = 0.1
_REFRESH_SECONDS = 1.0
# During a rebalance the next view is needed soon, but the coordinator may still be busy.
_REBALANCE_REFRESH_SECONDS = 0.1
_BROKER_SECONDS = 5.0
# A request to join waits for the next heartbeats of the other members, which come every two seconds.
_JOIN_SECONDS = 3.0
# No request reaches this timeout, because a new client replaces one without a response after _BROKER_SECONDS.
# librdkafka can end the process if it reaches the coordinator after a request has timed out
# (https://github.com/confluentinc/librdkafka/pull/5397). It does not if the client is destroyed before.
_REQUEST_TIMEOUT_SECONDS = 3600.0
# The group removes a member that does not poll for this long (max.poll.interval.ms).
_LONGEST_POLL_INTERVAL_MS = 30_000


class GroupMembership:
    """A group member that reads no records: the group decides who owns a partition, and the materialiser reads it.

    So a rebalance never interrupts the reading of records, and a long write never delays a rebalance.

    Ownership is a lease. The coordinator gives a partition to another member when heartbeats are missing for the
    session timeout. This process may not notice, because it may be paused or disconnected. So this instance counts as
    the owner only for half of the session timeout after the last request in whose answer the coordinator listed it as a
    member. The other half is for the age of its last heartbeat, which is up to a quarter of the session timeout, and
    for responses that are on their way. Heartbeats use another connection than these requests. If only the heartbeats
    fail, the lease ends with the first answer that does not list this member.

    Attributes:
        owned: the partitions that the group has given to this instance, as far as it knows.
        assigned_at: when the group gave each partition to this instance for the last time, by ``boot_seconds``.
        error: why this instance is not in the group; None if it is in the group, or if Kafka has named no reason.
    """

    def __init__(self, settings: Settings, url: str, copies: UUID | None = None) -> None:
        """Prepare a membership.

        Args:
            copies: identifies the copies on disk. A process with the same copies and the same URL is the same static
                member (KIP-345). It gets its partitions back as soon as it joins, also if the session of the former
                process has not ended. None makes a dynamic member: this process has no copies, but others may.

        Raises:
            SettingsError: the peers would ignore this URL, and with it the partitions of this instance.
        """
        if not is_url(url):
            raise SettingsError(
                f"LOYALTY_APPLICATION_SERVER: the other instances cannot use {url}. Set it to the URL at which they "
                "reach this one, such as http://10.0.0.7:8080"
            )
        self.group = f"{settings.topic_prefix}loyalty-api"
        self.url = url
        self.view: GroupView | None = None
        self.member_id: str | None = None
        self._settings = settings
        self._copies = copies
        self.lease_seconds = settings.session_timeout.total_seconds() / 2
        self.owned: frozenset[ChangelogPartition] = frozenset()
        self.assigned_at: Mapping[ChangelogPartition, float] = {}
        self.error: str | None = None
        self._confirmed_at = float("-inf")
        self._described = True
        self._doubted_at: float | None = None
        self._next_refresh = 0.0
        self._on_change: Callable[[], None] = lambda: None
        self._topics: Mapping[str, int] = {}
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    @property
    def partitions(self) -> list[ChangelogPartition]:
        """All partitions that the group distributes."""
        return [(topic, number) for topic, count in self._topics.items() for number in range(count)]

    @property
    def lease_holds(self) -> bool:
        """Whether the coordinator cannot have given the partitions to another member yet."""
        return boot_seconds() - self._confirmed_at < self.lease_seconds

    @property
    def alive(self) -> bool:
        """Whether the thread is alive, or has not started yet, or has been told to stop."""
        return self._thread.ident is None or self._thread.is_alive() or self._leaving.is_set()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Set a callback. The membership's thread calls it after each change of the owned partitions or of the view."""
        self._on_change = callback

    def join(self, topics: Mapping[str, int]) -> None:
        """Join the group, which distributes these topics (name to number of partitions). They must exist.

        A second call does nothing.
        """
        if self._thread.ident is None and not self._leaving.is_set():
            self._topics = dict(topics)
            self._thread.start()

    def begin_to_leave(self) -> None:
        """Leave the group soon. It returns at once, so a signal handler can call it."""
        self._leaving.set()

    def leave(self) -> None:
        """Leave the group. Returns when the coordinator knows."""
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join()

    def refresh(self) -> None:
        """Ask the coordinator for a new view as soon as possible."""
        self._next_refresh = 0.0

    def _run(self) -> None:
        consumer = self._consumer()
        admin = clients.admin(self._settings, self.url)
        pending: tuple[float, Future[Any]] | None = None
        try:
            while not self._leaving.is_set():
                if self._is_in_doubt_for_long():
                    before, consumer = consumer, clients.replaced_if_lost(consumer, self._consumer, self._settings)
                    if consumer is not before:
                        self.owned = frozenset()
                message = consumer.poll(_POLL_SECONDS)
                if message is not None and (error := message.error()):
                    self.error = error.str()
                    log.warning("the group member received an error from Kafka", error=self.error)
                    if error.code() == KafkaError._FATAL:  # noqa: SLF001 - the code has no other name
                        consumer = self._as_another_member(consumer)
                if pending is None and boot_seconds() >= self._next_refresh:
                    asked_at = boot_seconds()  # before the request, because the process can pause during the call
                    self._next_refresh = asked_at + _REFRESH_SECONDS
                    futures = admin.describe_consumer_groups([self.group], request_timeout=_REQUEST_TIMEOUT_SECONDS)
                    pending = (asked_at, futures[self.group])
                elif pending and (pending[1].done() or boot_seconds() - pending[0] > _BROKER_SECONDS):
                    if not self._update_view(*pending, consumer.memberid()):
                        # After a restart of the only broker, a client that has described a group before gets no more
                        # responses. A new client gets them.
                        admin = clients.admin(self._settings, self.url)
                    pending = None
        except Exception:
            log.exception("the group membership has failed; restart the instance")
        finally:
            self._end_ownership()
            self._leave(consumer)
            self._on_change()

    def _as_another_member(self, fenced: Consumer) -> Consumer:
        """A consumer that joins as a new static member, because Kafka has fenced the former one.

        The cause can be a second process with this URL and a copy of the state directory. It can also be this process:
        when a hanging broker continues, it also handles requests to join that have timed out.
        """
        self._copies = uuid4()
        self._end_ownership()
        clients.close(fenced)
        self._on_change()
        return self._consumer()

    def _end_ownership(self) -> None:
        self.owned = frozenset()
        self._confirmed_at = float("-inf")

    def _is_in_doubt_for_long(self) -> bool:
        """Whether the lease has not held for LOST_SECONDS. After True, the time starts again."""
        if self.lease_holds or self._doubted_at is None:
            self._doubted_at = None if self.lease_holds else boot_seconds()
            return False
        if boot_seconds() < self._doubted_at + clients.LOST_SECONDS:
            return False
        self._doubted_at = None
        return True

    def _consumer(self) -> Consumer:
        overrides: dict[str, clients.Option] = {
            **clients.member_options(self._settings, self.group, _LONGEST_POLL_INTERVAL_MS),
            "partition.assignment.strategy": "cooperative-sticky",
        }
        if self._copies:
            # The coordinator keeps the client id and the partitions of a static member. So a process with another URL
            # or other topics is another member.
            overrides["group.instance.id"] = str(uuid5(self._copies, f"{self.url} {sorted(self._topics.items())}"))
        consumer = clients.consumer(self._settings, self.url, **overrides)
        consumer.subscribe(list(self._topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        return consumer

    def _leave(self, consumer: Consumer) -> None:
        """Leave the group, after CLOSE_SECONDS at the latest, and close the consumer.

        A static member leaves when it unsubscribes, and not when it closes. It needs its member id for this, which is
        empty before it has joined and after it has left. Without the id, it would stay until its session ends.
        """
        now = boot_seconds()
        with suppress(KafkaException):  # a member with a fatal error cannot leave, and need not
            while self._copies and not consumer.memberid() and boot_seconds() < now + _JOIN_SECONDS:
                consumer.poll(_POLL_SECONDS)
            consumer.unsubscribe()
            while consumer.memberid() and boot_seconds() < now + clients.CLOSE_SECONDS:
                consumer.poll(_POLL_SECONDS)
        consumer.close()

    def _update_view(self, asked_at: float, future: "Future[Any]", member_id: str) -> bool:
        try:
            view = view_of(future.result(timeout=0), asked_at, self.view)
        except (KafkaException, TimeoutError) as error:
            if self._described:
                reason = error.args[0].str() if isinstance(error, KafkaException) else "no response"
                log.warning("the coordinator does not describe the group; the instance asks again", error=reason)
            self._described = False
            return False
        if not self._described:
            log.info("the coordinator describes the group again")
        self._described = True
        if view.has(member_id):
            self._confirmed_at, self.error = asked_at, None
        else:  # If the group has removed this member, another one may own its partitions already.
            self._confirmed_at = float("-inf")
        self.member_id = member_id
        changed = self.view is None or (view.members, view.stable) != (self.view.members, self.view.stable)
        self.view = view
        if not view.stable:
            self._next_refresh = min(self._next_refresh, boot_seconds() + _REBALANCE_REFRESH_SECONDS)
        if changed:
            self._on_change()
        return True

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Pause the partitions at once: the materialiser reads them, and this consumer does not.
        ends = [TopicPartition(each.topic, each.partition, OFFSET_END) for each in partitions]
        consumer.incremental_assign(ends)
        consumer.pause(ends)
        self.assigned_at = {**self.assigned_at, **dict.fromkeys(_keys(partitions), boot_seconds())}
        self._set_owned("partitions assigned", partitions, self.owned | _keys(partitions))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Give up the ownership first. No other member gets the partitions before this callback returns.
        self._set_owned("partitions revoked", partitions, self.owned - _keys(partitions))
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._set_owned("partitions lost", partitions, self.owned - _keys(partitions))
        consumer.incremental_unassign(partitions)

    def _set_owned(self, event: str, partitions: list[TopicPartition], owned: frozenset[ChangelogPartition]) -> None:
        log.info(event, partitions=sorted(f"{each.topic}-{each.partition}" for each in partitions))
        self.owned = owned
        self.refresh()
        self._on_change()


def _keys(partitions: Iterable[TopicPartition]) -> frozenset[ChangelogPartition]:
    return frozenset((partition.topic, partition.partition) for partition in partitions)
