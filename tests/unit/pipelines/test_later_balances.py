"""An older checkpoint of the loyalty query is recognised by the balances that a later one has written."""

from collections.abc import Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipelines.checkpoints import later_balances
from pipelines.checkpoints.later_balances import find_later_balance
from schemas.topics import LOYALTY_BALANCES
from services.clock import now
from services.messaging.avro import decoder, encoder
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings

IDS = FolderSchemaIds()
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
NOW = now()
PLANNED = NOW - 10 * HOUR
"""When Spark planned the newest micro-batch of the checkpoint."""
POSITIONS = {"pos-invoices": {0: 1}}


def balance(updated: int) -> bytes:
    points = {"TotalLoyaltyPoints": Decimal(1)}
    return encoder(LOYALTY_BALANCES, IDS)(
        {"CustomerCardNo": "A", "Sequence": 1, "UpdatedTime": updated, "OpenedTime": 1, "Tier": "", "MovedTo": ""}
        | points
    )


def decoded_time(record: tuple[int, bytes | None]) -> int:
    return int(decoder(LOYALTY_BALANCES, IDS)(record[1] or b"")["UpdatedTime"])


class Changelog:
    """Stands for a consumer. ``partitions`` has the append time and the value of each record of the changelog.

    Attributes:
        events: the append times of the records of each partition of pos-invoices.
        polled: the number of records that were read.
    """

    def __init__(
        self, *partitions: list[tuple[int, bytes | None]], events: Sequence[int] = (PLANNED - SECOND,)
    ) -> None:
        self._partitions = partitions
        self.events = events
        self._left: list[Any] = []
        self.polled = 0

    def list_topics(self, topic: str, **_: object) -> Any:
        partitions = {number: SimpleNamespace(leader=1) for number, _ in enumerate(self._partitions)}
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=partitions)})

    def get_watermark_offsets(self, asked: TopicPartition, **_: object) -> tuple[int, int]:
        return 0, len(self._partitions[asked.partition])

    def offsets_for_times(self, asked: list[TopicPartition], **_: object) -> list[TopicPartition]:
        """The first record of each partition that was appended at this time or later; -1 if there is none."""
        found = []
        for each in asked:
            is_changelog = each.topic == LOYALTY_BALANCES.name
            appended = [time for time, _ in self._partitions[each.partition]] if is_changelog else self.events
            first = next((offset for offset, at in enumerate(appended) if at >= each.offset), -1)
            found.append(TopicPartition(each.topic, each.partition, first))
        return found

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._left = [
            SimpleNamespace(
                error=lambda: None,
                partition=lambda each=each: each.partition,
                offset=lambda offset=offset: offset,
                value=lambda each=each, offset=offset: self._partitions[each.partition][offset][1],
            )
            for each in partitions
            for offset in range(each.offset, len(self._partitions[each.partition]))
        ]

    def poll(self, _: float) -> Any:
        self.polled += 1
        return self._left.pop(0)

    def close(self) -> None:
        pass


REPLAYED = (PLANNED + 9 * HOUR, balance(PLANNED - SECOND))
"""The balance of a micro-batch that was replayed after nine hours without Kafka."""


@pytest.mark.parametrize(
    ("records", "is_later"),
    [
        ([], False),
        ([(PLANNED + 2 * SECOND, balance(PLANNED - SECOND))], False),
        ([REPLAYED], False),
        ([REPLAYED, (PLANNED + 9 * HOUR, balance(PLANNED + 8 * HOUR))], True),
        ([(PLANNED + 8 * HOUR, None), (PLANNED + 8 * HOUR, b"other"), (NOW, balance(PLANNED + 8 * HOUR))], True),
        ([(PLANNED + HOUR, balance(PLANNED + 4 * MINUTE))], False),
        ([(PLANNED + HOUR, balance(PLANNED + 6 * MINUTE))], True),
        ([(PLANNED + HOUR, balance(NOW + 240 * HOUR))], False),
    ],
    ids=["empty", "own", "replayed", "later", "erased", "clocks differ", "clocks do not differ so much", "wrong clock"],
)
@pytest.mark.parametrize("partition", [0, 1])
def test_only_an_event_that_no_planned_micro_batch_has_read_proves_a_later_checkpoint(
    monkeypatch: pytest.MonkeyPatch, records: list[tuple[int, bytes | None]], *, is_later: bool, partition: int
) -> None:
    """A false refusal would stop the points of all customers, and a rebuild would not end it."""
    partitions: list[list[tuple[int, bytes | None]]] = [[], []]
    partitions[partition] = records
    monkeypatch.setattr(later_balances, "bounded_consumer", lambda *_: Changelog(*partitions))
    expected = ((partition, len(records) - 1), decoded_time(records[-1])) if is_later else None
    assert expected == find_later_balance(PLANNED, POSITIONS, IDS, Settings())


@pytest.mark.parametrize(("position", "is_later"), [(1, True), (2, False)], ids=["unread", "read"])
def test_a_wrong_clock_of_a_broker_or_driver_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, *, position: int, is_later: bool
) -> None:
    """The checkpoint has read the event, or one with a later time, although Spark planned its micro-batch before. The
    other partition says nothing.
    """
    own = [(PLANNED + 2 * HOUR, balance(PLANNED + HOUR)), (PLANNED + 2 * HOUR, balance(PLANNED + 2 * HOUR))]
    changelog = Changelog(own, events=[PLANNED - SECOND, PLANNED + 2 * HOUR])
    monkeypatch.setattr(later_balances, "bounded_consumer", lambda *_: changelog)
    found = find_later_balance(PLANNED, {"pos-invoices": {0: position, 1: 0}}, IDS, Settings())
    assert is_later == (found is not None)


def test_an_error_of_one_partition_is_not_an_empty_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Changelog):
        def offsets_for_times(self, asked: list[TopicPartition], **_: object) -> Any:
            error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            return [SimpleNamespace(partition=each.partition, offset=-1, error=error) for each in asked]

    monkeypatch.setattr(later_balances, "bounded_consumer", lambda *_: Failing([]))
    with pytest.raises(KafkaException):
        find_later_balance(PLANNED, POSITIONS, IDS, Settings())


@pytest.mark.parametrize("replayed", [0, 1])
def test_a_start_reads_only_what_was_written_later(monkeypatch: pytest.MonkeyPatch, replayed: int) -> None:
    """The changelog has the balances of all customers. After a stop, usually nothing is later."""
    changelog = Changelog([(PLANNED + SECOND, balance(PLANNED - SECOND))] * 1_000 + [REPLAYED] * replayed)
    monkeypatch.setattr(later_balances, "bounded_consumer", lambda *_: changelog)
    assert find_later_balance(PLANNED, POSITIONS, IDS, Settings()) is None
    assert replayed == changelog.polled
