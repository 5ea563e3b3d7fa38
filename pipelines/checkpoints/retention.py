"""Finds records that a query would never read.

Retention has deleted them, their topic was created again, or they get the offsets of records that Kafka has lost.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from pyspark.sql import SparkSession

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import read_json
from pipelines.checkpoints.reader import CheckpointReader
from schemas.topics import Topic
from services.errors import UserError
from services.messaging.administration import topic_ids
from services.messaging.clients import consumer
from services.messaging.topic_reader import watermarks_of
from services.settings import Settings

_LOST_RECORDS = "lost-records.json"

_TOPIC_IDS = "topic-ids.json"
"""The file with the broker's ids of the topics. A topic that is deleted and created again has another id."""


class LostRecords(NamedTuple):
    """Records of a partition that a query can have skipped, from ``start`` (inclusive) to ``end`` (exclusive).

    The list is complete. But the partition may have been shorter, so the query may read some of these records later.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic} {self.partition} from offset {self.start} to {self.end - 1}"

    def covers(self, other: "LostRecords") -> bool:
        return self[:2] == other[:2] and self.start <= other.start and other.end <= self.end


def check(spark: SparkSession, checkpoint: str, sources: Collection[Topic], settings: Settings) -> None:
    """Raise UserError if a topic begins after the offset at which the checkpoint continues, or ends before it.

    Also raise it if a topic was created again: the offsets of the checkpoint then belong to other records. If the
    settings accept the loss, write the list of lost records into the checkpoint instead.

    Limit: a partition that has lost its newest records can have new ones up to the offset at which the checkpoint
    continues. Then it looks as if nothing was lost.
    """
    ids_before = read_json(spark, checkpoint, _TOPIC_IDS)
    ids = ids_before | topic_ids(sources, settings)
    replaced = [name for name, topic_id in ids.items() if ids_before.get(name, topic_id) != topic_id]
    lost = _lost_records(spark, checkpoint, sources, replaced, settings)
    if (lost or replaced) and not settings.accept_data_loss:
        raise UserError(_explain(checkpoint, lost, replaced))
    files = Files(spark, checkpoint)
    if lost:
        # A restart can find the same loss again, with a later end. It can also find only a part of it.
        losses = {*accepted_losses(spark, checkpoint), *lost}
        longest = [each for each in losses if not any(other.covers(each) for other in losses - {each})]
        files.write(_LOST_RECORDS, json.dumps(sorted(longest)))
    if ids != ids_before:
        files.write(_TOPIC_IDS, json.dumps(ids))


def _explain(checkpoint: str, lost: Mapping[LostRecords, str], replaced: Collection[str]) -> str:
    if replaced:
        return (
            f"{', '.join(replaced)} was created again, so {checkpoint} belongs to other records. With "
            f"LOYALTY_ACCEPT_DATA_LOSS=true the query continues at its old offsets, or at the end of a shorter "
            f"partition, and can skip {'; '.join(map(str, lost)) or 'no record'}; first read "
            "docs/how-to/manage-checkpoints.md"
        )
    reasons = "; ".join(f"{why} {records}" for records, why in lost.items())
    return (
        f"the query with the checkpoint {checkpoint} would skip records: {reasons}. First read "
        "docs/how-to/manage-checkpoints.md. With LOYALTY_ACCEPT_DATA_LOSS=true the query continues without them"
    )


def accepted_losses(spark: SparkSession, checkpoint: str) -> list[LostRecords]:
    """The records that the query can have skipped so far, because the settings accepted their loss."""
    return [LostRecords(*each) for each in read_json(spark, checkpoint, _LOST_RECORDS)]


def _lost_records(
    spark: SparkSession, checkpoint: str, sources: Iterable[Topic], replaced: Collection[str], settings: Settings
) -> dict[LostRecords, str]:
    """The records that the query would skip, each with the reason."""
    reader = CheckpointReader(spark, checkpoint)
    # Before its first commit a query continues where it began.
    positions = reader.positions() or reader.first_positions()
    planned = reader.positions("offsets")
    lost = {}
    with closing(consumer(settings, "loyalty-pipeline")) as client:
        for topic in filter(positions.get, map(settings.name_of, sources)):
            # A topic that was created again can lack partitions of the checkpoint. Spark reads new ones from offset 0.
            for partition, (begin, end) in watermarks_of(client, topic).items():
                position = positions[topic].get(partition, 0)
                # A planned micro-batch can have read records, although it is not committed.
                read = max(position, planned.get(topic, {}).get(partition, 0))
                if topic in replaced and begin < read:
                    # A shorter partition still grows until Spark asks for its end, and Spark continues there.
                    lost[LostRecords(topic, partition, begin, read)] = "the topic was created again:"
                elif position < begin:
                    lost[LostRecords(topic, partition, position, begin)] = "retention has deleted"
                elif end < read:
                    why = "Kafka has lost the newest records of a partition, and new records get their offsets:"
                    lost[LostRecords(topic, partition, end, read)] = why
    return lost
