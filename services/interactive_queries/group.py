"""The consumer group as every instance sees it: who is in it, who owns what, who keeps the copies. No I/O here.

A member's client id is the URL under which it serves: the group's own coordinator is the only directory there is.
"""

import hashlib
import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin._group import ConsumerGroupDescription

from services.state_stores.assignment import Place

_ADDRESS = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True)
class Member:
    """One instance, as the coordinator knows it.

    Attributes:
        member_id: given by the coordinator; a process that comes back gets a new one.
        url: where it serves.
        places: what it owns.
    """

    member_id: str
    url: str
    places: frozenset[Place]


@dataclass(frozen=True)
class GroupView:
    """The group at one moment.

    Attributes:
        members: in the order of their ids. Whoever is in the group without a URL for a client id is no instance.
        stable: False during a rebalance; members then have what they had before it.
        asked_at: when the coordinator was asked, by ``boot_seconds``. What it says was true then or later.
    """

    members: tuple[Member, ...]
    stable: bool
    asked_at: float

    @cached_property
    def owners(self) -> dict[Place, Member]:
        return {place: member for member in self.members for place in member.places}

    @cached_property
    def urls(self) -> frozenset[str]:
        return frozenset(member.url for member in self.members)

    def has(self, member_id: str) -> bool:
        return any(member.member_id == member_id for member in self.members)


def view_of(description: ConsumerGroupDescription, asked_at: float, previous: GroupView | None) -> GroupView:
    """What a description of the group says.

    During a rebalance the coordinator names the members without their partitions: whoever stays keeps, as far as
    anybody can know, what the previous view gave it.
    """
    stable = description.state == ConsumerGroupState.STABLE
    before = {member.member_id: member.places for member in previous.members} if previous else {}
    members = []
    for found in description.members:
        if not is_url(found.client_id):
            continue
        now = frozenset((each.topic, each.partition) for each in found.assignment.topic_partitions)
        members.append(Member(found.member_id, found.client_id, now if stable else before.get(found.member_id, now)))
    return GroupView(tuple(sorted(members, key=lambda member: member.member_id)), stable, asked_at)


def is_url(client_id: str) -> bool:
    """Whether a client id is the address of an instance: scheme, host and port, nothing else."""
    found = _ADDRESS.fullmatch(client_id)
    return found is not None and 0 < int(found["port"] or 80) < 2**16


def standbys_of(view: GroupView, place: Place, count: int) -> tuple[str, ...]:
    """The URLs that keep a copy of a partition, the same by every instance's reckoning.

    The first is the one to which the group would give the partition if its owner died: it then takes over what it has.
    The others come by rendezvous hashing, which moves few copies when members come and go.
    """
    owner = view.owners.get(place)
    if owner is None or count < 1:
        return ()
    others = {url for url in view.urls if url != owner.url}
    heir = heirs(view, owner).get(place)
    ranked = sorted(others, key=lambda url: (url != heir, _weight(place, url)))
    return tuple(ranked[:count])


def heirs(view: GroupView, gone: Member) -> dict[Place, str]:
    """Where the sticky assignor puts what a dead member leaves: one by one with whoever has least, by id if equal."""
    heap = [(len(member.places), member.member_id, member.url) for member in view.members if member is not gone]
    heapq.heapify(heap)
    found: dict[Place, str] = {}
    if heap:
        for place in sorted(gone.places):
            load, member_id, url = heap[0]
            found[place] = url
            heapq.heapreplace(heap, (load + 1, member_id, url))
    return found


def leaders(topics: Mapping[str, int]) -> dict[str, str]:
    """Topic to the topic that is shared in its place: the first with as many partitions (name to their number).

    The group shares the leaders' partitions only, and whoever owns a partition of a leader owns those of the same
    number of the topics that it leads. So every topic is spread evenly (the sticky assignor evens out only the sum),
    and what was partitioned alike stays together.
    """
    first: dict[int, str] = {}
    return {topic: first.setdefault(count, topic) for topic, count in topics.items()}


def covers(view: GroupView, places: Iterable[Place]) -> bool:
    """Whether every partition has an owner: between the two steps of a cooperative rebalance some have none."""
    return view.stable and all(place in view.owners for place in places)


def _weight(place: Place, url: str) -> bytes:
    topic, partition = place
    return hashlib.blake2b(f"{topic}-{partition}@{url}".encode(), digest_size=8).digest()
