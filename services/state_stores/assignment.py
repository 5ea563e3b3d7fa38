"""Which partitions an instance takes. The materialiser asks nobody else, so sharing them out is one more class here."""

from collections.abc import Iterable
from typing import Protocol

from confluent_kafka import Consumer, TopicPartition


class PartitionOwner(Protocol):
    """What an assignment drives: in the materialiser's thread, possibly from inside the consumer's callbacks."""

    def take(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Open the stores of these partitions; returns them with the offsets to read from."""

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Close the stores of these partitions; their data stays on disk for a return."""


class Assignment(Protocol):
    """Decides the partitions of this instance."""

    def attach(self, consumer: Consumer, topics: dict[str, int], owner: PartitionOwner) -> None:
        """Make the consumer read this instance's partitions of the topics (name to number of partitions)."""


class AllPartitions:
    """Every partition of every topic: a single instance."""

    def attach(self, consumer: Consumer, topics: dict[str, int], owner: PartitionOwner) -> None:
        everything = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
        consumer.assign(owner.take(consumer, everything))
