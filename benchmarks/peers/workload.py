"""The invoices of all contenders, and the output that they must write."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property

import stamina
from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from infra.demo.comparison import Outputs, mismatches
from infra.demo.oracle import Expected, Sent, expect
from infra.demo.trading_day import simulated
from schemas import topics
from schemas.topics import Topic
from services.messaging.administration import create_topics
from services.messaging.avro import encoder
from services.messaging.clients import admin, consumer
from services.messaging.publishing import connected_producer, publish
from services.messaging.schema_ids import FolderSchemaIds
from services.pos_simulator.simulation import Options
from services.settings import Settings
from tests.support.kafka import highest_balances_of, read_all, records_of

FAN_OUT, LOYALTY = "fan-out", "loyalty"
OUTPUTS: dict[str, tuple[Topic, ...]] = {
    FAN_OUT: (topics.SHIPMENT, topics.HADOOP, topics.DEAD_LETTERS),
    LOYALTY: (topics.LOYALTY,),
}
"""The output topics of each branch."""

FACTOR = Decimal("0.02")
_IDS = FolderSchemaIds()
_SHOWN = 5


class WrongOutputError(RuntimeError):
    """The output does not agree with the oracle. The message names the first differences."""


@dataclass(frozen=True)
class Workload:
    """Invoices on a broker, which all runs read one after the other."""

    settings: Settings
    options: Options

    @cached_property
    def sent(self) -> list[Sent]:
        return list(simulated(self.options, _IDS))

    @cached_property
    def expected(self) -> Expected:
        return expect(self.sent, FACTOR)

    @cached_property
    def _values(self) -> dict[Topic, Counter[bytes]]:
        """The expected values by topic. Equal Avro records have equal bytes."""
        shipment, hadoop = (encoder(topic, _IDS) for topic in (topics.SHIPMENT, topics.HADOOP))
        rows: Counter[bytes] = Counter()
        for row, count in self.expected.hadoop.items():
            rows[hadoop(dict(row))] += count
        letters: Counter[bytes] = Counter()
        for (_, value), count in self.expected.dead_letters.items():
            letters[value or b""] += count
        whole = Counter(shipment(invoice) for invoice in self.expected.shipment.values())
        return {topics.SHIPMENT: whole, topics.HADOOP: rows, topics.DEAD_LETTERS: letters}

    def records(self, branch: str) -> int:
        """The number of output records of a branch."""
        return sum(
            self.expected.notifications if topic is topics.LOYALTY else self._values[topic].total()
            for topic in OUTPUTS[branch]
        )

    def load(self) -> None:
        """Create the topics, and publish all invoices once for all runs."""
        create_topics(self.settings)
        name = self.settings.name_of(topics.POS_INVOICES)
        publish(
            ((each.key, each.value) for each in self.sent), connected_producer(self.settings, "benchmark", [name]), name
        )

    def clear(self) -> None:
        """Delete and create all topics except that of the invoices, to remove the output of a run."""
        client = admin(self.settings)
        kept = self.settings.name_of(topics.POS_INVOICES)
        left = [name for name in _names(client) if name != kept]
        for future in client.delete_topics(left, operation_timeout=30).values() if left else ():
            future.result()
        create_topics(self.settings)

    # A new topic may not have a leader yet.
    @stamina.retry(on=KafkaException, attempts=20)
    def ends(self, branch: str) -> int:
        """The sum of the end offsets of the outputs of a branch, including transaction markers."""
        with closing(consumer(self.settings, "benchmark")) as client:
            partitions = (
                TopicPartition(self.settings.name_of(topic), number)
                for topic in OUTPUTS[branch]
                for number in range(self.settings.partitions_of(topic))
            )
            return sum(client.get_watermark_offsets(partition, timeout=30)[1] for partition in partitions)

    def compare(self, branch: str, *, balances: bool) -> list[int]:
        """Compare the output of a branch with the oracle. Raises WrongOutputError.

        Returns the append times of all output records, in ascending order and in milliseconds.

        Args:
            balances: whether to compare loyalty-balances, too.
        """
        found = {topic: read_all(self.settings, topic) for topic in OUTPUTS[branch]}
        wrong = [*self._differences(found)]
        if branch == LOYALTY:
            wrong += self._notifications()
        if balances:
            wrong += self._balances()
        if wrong:
            raise WrongOutputError(f"{len(wrong)} differences from the oracle, the first: {'; '.join(wrong[:_SHOWN])}")
        return sorted(message.timestamp()[1] for messages in found.values() for message in messages)

    def _differences(self, found: dict[Topic, list[Message]]) -> Iterator[str]:
        for topic, messages in found.items():
            if topic is not topics.LOYALTY:
                values, expected = Counter(message.value() or b"" for message in messages), self._values[topic]
                yield from (f"{topic.name}: missing {value!r}" for value in (expected - values).elements())
                yield from (f"{topic.name}: not expected {value!r}" for value in (values - expected).elements())

    def _notifications(self) -> list[str]:
        earned = replace(Expected(), earned=self.expected.earned)
        found = Outputs(notifications=records_of(self.settings, topics.LOYALTY))
        return [each.text for each in mismatches(earned, found) if not each.text.startswith("balance")]

    def _balances(self) -> Iterator[str]:
        found = {card: record["TotalLoyaltyPoints"] for card, record in highest_balances_of(self.settings).items()}
        for card, earned in self.expected.earned.items():
            if found.get(card) != sum(earned.values()):
                yield f"balance of {card}: expected {sum(earned.values())}, found {found.get(card)}"


def _names(client: AdminClient) -> list[str]:
    return [name for name in client.list_topics(timeout=30).topics if not name.startswith("__")]
