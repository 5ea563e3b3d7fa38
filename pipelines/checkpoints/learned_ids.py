"""The schema ids that a query has learned, in a file of its checkpoint.

An id must keep its schema, because another schema would give other values. And an id counts from the first micro-batch
that is planned after the query has learned it. Otherwise the replay of an unfinished micro-batch could accept records
that its first run has refused, and give other records than the ones that it has written.
"""

import json
from collections.abc import Collection, Iterable
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import CheckpointMismatchError, read_json
from pipelines.checkpoints.reader import CheckpointReader, is_before
from schemas.topics import POS_INVOICES, Topic
from services.messaging.avro import header, same_schema
from services.messaging.schema_ids import SchemaIds, UnknownSchemaIdError
from services.settings import Settings

_FILE = "schema-ids.json"
"""By topic and schema id: the schema, and the number of the first micro-batch in which the id counts."""


class LearnedIds:
    """The ids of the topics that a query reads.

    Attributes:
        new: by topic, the ids that earlier starts did not know. Empty at the first start.
        late: by topic, the ids that do not count in the planned micro-batches.
        planned: the positions after the last micro-batch that Spark has planned, and may run again.
    """

    def __init__(
        self, spark: SparkSession, checkpoint: str, topics: Iterable[Topic], ids: SchemaIds, settings: Settings
    ) -> None:
        """Raises CheckpointMismatchError if an id is gone or has another schema."""
        reader = CheckpointReader(spark, checkpoint)
        self.planned = reader.positions("offsets")
        next_batch = max(reader.batches("offsets"), default=-1) + 1
        self._files, self._before = Files(spark, checkpoint), read_json(spark, checkpoint, _FILE)
        before = self._before
        if isinstance(before, list):  # a checkpoint of a pre-release: only the numbers of pos-invoices
            known = ids.known(POS_INVOICES)
            before = {POS_INVOICES.name: {str(each): _entry(known.get(each), 0) for each in before}}
        self._now: dict[str, dict[str, Any]] = {}
        self.late: dict[Topic, list[int]] = {}
        self.new: dict[Topic, list[int]] = {}
        for topic in topics:
            earlier = before.get(topic.name, {})
            known = ids.known(topic)
            if lost := [each for each in earlier if not _is_same(earlier[each]["schema"], known.get(int(each)))]:
                raise CheckpointMismatchError(
                    f"the schema ids {', '.join(lost)} of {settings.name_of(topic)} are gone or have other schemas, "
                    f"and the checkpoint {checkpoint} names them. The query would refuse the records with these ids, "
                    "or read wrong values: correct LOYALTY_SCHEMA_REGISTRY_URL, restore the Schema Registry, or "
                    "install the newer release again (docs/how-to/back-up-and-restore.md#the-schema-registry)"
                )
            first_batch = next_batch if earlier else 0
            now = {str(each): earlier.get(str(each)) or _entry(text, first_batch) for each, text in known.items()}
            self._now[topic.name] = now
            self.late[topic] = [int(each) for each in now if now[each]["first_batch"] >= next_batch > 0]
            self.new[topic] = [int(each) for each in now if earlier and each not in earlier]

    def too_early(self, topic: Topic) -> Column | None:
        """The reason of a record that is in a planned micro-batch, and has an id that does not count in it.

        The column is null for other records. None stands for a column of nulls.
        """
        late = self.late[topic]
        return F.when(is_before(self.planned), reason_of_ids(late)) if late else None

    def save(self) -> None:
        """Write the file. A micro-batch may use the ids only afterwards."""
        if self._now != self._before:
            self._files.write(_FILE, json.dumps(self._now, indent=2))


def reason_of_ids(ids: Collection[int]) -> Column:
    """The reason of a record that has one of these schema ids, as if the query did not know the id. Otherwise null."""
    return F.coalesce(
        *(F.when(F.startswith("value", F.lit(header(each))), str(UnknownSchemaIdError(each))) for each in ids)
    )


def _entry(schema: str | None, first_batch: int) -> dict[str, Any]:
    return {"schema": schema, "first_batch": first_batch}


def _is_same(before: str, now: str | None) -> bool:
    # A registry can also have a schema that is not Avro.
    return now is not None and (before == now or same_schema(before, now))
