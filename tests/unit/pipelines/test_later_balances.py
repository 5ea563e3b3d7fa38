"""An older checkpoint of the loyalty query is recognised by the balances that a later one has written."""

import time
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from pipelines.checkpoints import later_balances
from pipelines.checkpoints.later_balances import has_later_balance
from schemas.topics import LOYALTY_BALANCES
from services.messaging.avro import encoder
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings

IDS = FolderSchemaIds()
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
NOW = time.time_ns() // 1_000_000
PLANNED = NOW - 10 * HOUR
"""When Spark planned the newest micro-batch of the checkpoint."""


def balance(updated: int) -> bytes:
    points = {"TotalLoyaltyPoints": Decimal(1)}
    return encoder(LOYALTY_BALANCES, IDS)(
        {"CustomerCardNo": "A", "Sequence": 1, "UpdatedTime": updated, "OpenedTime": 1, "Tier": "", "MovedTo": ""}
        | points
    )


class Changelog:
    """Stands for a consumer. ``partitions`` has the append time and the value of each record.

    Attributes:
        polled: the number of records that were read.
    """

    def __init__(self, *partitions: list[tuple[int, bytes | None]]) -> None:
        self._partitions = partitions
        self._left: list[Any] = []
        self.polled = 0

    def list_topics(self, topic: str, **_: object) -> Any:
        partitions = {number: SimpleNamespace(leader=1) for number, _ in enumerate(self._partitions)}
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=partitions)})

    def get_watermark_offsets(self, asked: TopicPartition, **_: object) -> tuple[int, int]:
        return 0, len(self._partitions[asked.partition])

    def offsets_for_times(self, asked: list[TopicPartition], _: float) -> list[TopicPartition]:
        """The first record of each partition that was appended at this time or later; -1 if there is none."""
        found = []
        for each in asked:
            appended = [append_time for append_time, _ in self._partitions[each.partition]]
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
    assert is_later == has_later_balance(PLANNED, IDS, Settings())


@pytest.mark.parametrize("replayed", [0, 1])
def test_a_start_reads_only_what_was_written_later(monkeypatch: pytest.MonkeyPatch, replayed: int) -> None:
    """The changelog has the balances of all customers. After a stop, usually nothing is later."""
    changelog = Changelog([(PLANNED + SECOND, balance(PLANNED - SECOND))] * 1_000 + [REPLAYED] * replayed)
    monkeypatch.setattr(later_balances, "bounded_consumer", lambda *_: changelog)
    assert not has_later_balance(PLANNED, IDS, Settings())
    assert replayed == changelog.polled
