"""The consumer group as each instance sees it: its members, owners and standbys. This module does no I/O.

The client id of a member is the URL under which it serves. So the group coordinator is the only directory of instances.
"""

import hashlib
import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin._group import ConsumerGroupDescription

from services.state_stores.assignment import ChangelogPartition

_URL = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True)
class Member:
    """One instance as the coordinator knows it.

    Attributes:
        member_id: assigned by the coordinator. A process that restarts gets a new one.
        url: the URL under which the instance serves.
    """

    member_id: str
    url: str
    partitions: frozenset[ChangelogPartition]


@dataclass(frozen=True)
class GroupView:
    """The group at one moment.

    Attributes:
        members: ordered by their ids. A member whose client id is not a URL is not an instance.
        stable: False during a rebalance. The members then have the partitions that they had before it.
        asked_at: the time of the request to the coordinator, by ``boot_seconds``. The view was true then or later.
    """

    members: tuple[Member, ...]
    stable: bool
    asked_at: float

    @cached_property
    def owners(self) -> dict[ChangelogPartition, Member]:
        return {partition: member for member in self.members for partition in member.partitions}

    @cached_property
    def urls(self) -> frozenset[str]:
        return frozenset(member.url for member in self.members)

    def has(self, member_id: str) -> bool:
        return any(member.member_id == member_id for member in self.members)

    def covers(self, partitions: Iterable[ChangelogPartition]) -> bool:
        """Whether each partition has an owner. Between the two steps of a cooperative rebalance some have no owner."""
        return self.stable and all(partition in self.owners for partition in partitions)


def view_of(description: ConsumerGroupDescription, asked_at: float, previous: GroupView | None) -> GroupView:
    """The view for the coordinator's description of the group.

    During a rebalance the coordinator lists the members without their partitions. The view then takes the partitions of
    each member from the previous view.
    """
    stable = description.state == ConsumerGroupState.STABLE
    before = {member.member_id: member.partitions for member in previous.members} if previous else {}
    members = []
    for found in description.members:
        if not is_url(found.client_id):
            continue
        now = frozenset((each.topic, each.partition) for each in found.assignment.topic_partitions)
        members.append(Member(found.member_id, found.client_id, now if stable else before.get(found.member_id, now)))
    return GroupView(tuple(sorted(members, key=lambda member: member.member_id)), stable, asked_at)


def is_url(client_id: str) -> bool:
    """Whether a client id is the URL of an instance: scheme, host and port, and nothing else."""
    found = _URL.fullmatch(client_id)
    return found is not None and 0 < int(found["port"] or 80) < 2**16


def standbys_of(view: GroupView, partition: ChangelogPartition, count: int) -> tuple[str, ...]:
    """The URLs of the instances that keep a standby of a partition. Each instance computes the same result.

    The first standby is the member that gets the partition if the owner leaves, so that it has the data already.
    Rendezvous hashing chooses the others, because it moves few copies when members join or leave.
    """
    owner = view.owners.get(partition)
    if owner is None or count < 1:
        return ()
    others = {url for url in view.urls if url != owner.url}
    successor = successors(view, owner).get(partition)
    ranked = sorted(others, key=lambda url: (url != successor, _weight(partition, url)))
    return tuple(ranked[:count])


def successors(view: GroupView, departed: Member) -> dict[ChangelogPartition, str]:
    """The URLs that get the partitions of a departed member from Kafka's sticky assignor.

    The assignor gives one partition after the other, the highest first, to the member with the fewest partitions. Among
    equal members it chooses the lowest member id.
    """
    heap = [(len(each.partitions), each.member_id, each.url) for each in view.members if each is not departed]
    heapq.heapify(heap)
    found: dict[ChangelogPartition, str] = {}
    if heap:
        for partition in sorted(departed.partitions, reverse=True):
            load, member_id, url = heap[0]
            found[partition] = url
            heapq.heapreplace(heap, (load + 1, member_id, url))
    return found


def representative_topics(topics: Mapping[str, int]) -> dict[str, str]:
    """The representative of each topic (name to number of partitions): the first topic with as many partitions.

    The group distributes only the partitions of representatives. The owner of such a partition also owns the partitions
    with the same number of the topics that it represents. So each topic is distributed evenly (the sticky assignor
    balances only the total), and copartitioned topics stay together.
    """
    first: dict[int, str] = {}
    return {topic: first.setdefault(count, topic) for topic, count in topics.items()}


def _weight(partition: ChangelogPartition, url: str) -> bytes:
    topic, number = partition
    return hashlib.blake2b(f"{topic}-{number}@{url}".encode(), digest_size=8).digest()
