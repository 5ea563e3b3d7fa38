"""The schema ids that a query has learned, in a file of its checkpoint.

An id must keep its schema, because another schema would give other values. And a query learns an id between two
micro-batches. Otherwise the replay of an unfinished micro-batch could accept records that its first run has refused,
and give other records than the ones that it has written.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import CheckpointMismatchError, read_json
from schemas.topics import Topic
from services.messaging.avro import same_schema
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings

_FILE = "schema-ids.json"
"""By topic and schema id: the schema."""


class LearnedIds:
    """The ids of the topics that a query reads.

    Attributes:
        new: by topic, the ids that the checkpoint lacks. A new checkpoint lacks none.
    """

    def __init__(
        self, spark: SparkSession, checkpoint: str, topics: Iterable[Topic], ids: SchemaIds, settings: Settings
    ) -> None:
        """Raises CheckpointMismatchError if an id is gone or has another schema."""
        self._files, self._before = Files(spark, checkpoint), read_json(spark, checkpoint, _FILE)
        self._now: dict[str, Any] = {}
        self.new: dict[Topic, list[int]] = {}
        for topic in topics:
            earlier, known = self._before.get(topic.name, {}), ids.known(topic)
            now = self._now[topic.name] = {str(each): text for each, text in known.items()}
            if lost := [each for each in earlier if each not in now or not same_schema(earlier[each], now[each])]:
                raise CheckpointMismatchError(
                    f"the schema ids {', '.join(lost)} of {settings.name_of(topic)} are gone or have other schemas, "
                    f"and the checkpoint {checkpoint} names them. The query would refuse the records with these ids, "
                    "or read wrong values: correct LOYALTY_SCHEMA_REGISTRY_URL, restore the Schema Registry, or "
                    "install the newer release again (docs/how-to/back-up-and-restore.md#the-schema-registry)"
                )
            if earlier and (new := [each for each in known if str(each) not in earlier]):
                self.new[topic] = new

    def save(self) -> None:
        """Write the file. A micro-batch may use the new ids only afterwards."""
        if self._now != self._before:
            self._files.write(_FILE, json.dumps(self._now, indent=2))


class EarlierIds:
    """Schema ids without the new ones of ``LearnedIds``."""

    def __init__(self, ids: SchemaIds, new: Mapping[Topic, list[int]]) -> None:
        self._ids, self._new = ids, new
        self.writer_id, self.writer_schema, self.accepts = ids.writer_id, ids.writer_schema, ids.accepts

    def known(self, topic: Topic) -> dict[int, str]:
        new = self._new.get(topic, [])
        return {each: text for each, text in self._ids.known(topic).items() if each not in new}
