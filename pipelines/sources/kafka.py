"""The Kafka source of all pipelines: streams for the queries, and batches for the reconciliation."""

import json
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipelines.sources.kafka_connection import kafka_connection
from schemas.topics import Topic
from services.messaging.topic_reader import Offsets
from services.settings import Settings

_FETCH_WAIT_MS = "20"
"""How long the broker holds a fetch at the end of a partition. Kafka's default is 500 ms.

A task asks for the records of its micro-batch. Its consumer may still wait for the answer to a fetch that it sent at
the end of the micro-batch before, and it sends no other fetch until then.
"""

_MOST_OF_A_POLL = "5"
"""How many records the consumer may return at once. Kafka's default is 500.

The consumer decompresses all of them, and a compressed record of some kB can have many MiB. With the default, 160
records of 14 MiB needed more memory than Spark has. The cost is processor time of the JVM: 27.6 us for each record. It
was 12.7 us with 20 records a poll, and 7.5 us with 500.
"""

_PATIENCE = {
    "kafka.default.api.timeout.ms": "6000",
    "kafka.request.timeout.ms": "2500",
    "kafka.metadata.max.age.ms": "10000",
    "fetchOffset.numRetries": "30",
    "kafkaConsumer.pollTimeoutMs": "60000",
}
"""How long the driver waits for offsets: 6 s for each of 30 attempts. By default there are three of 60 s.

Kafka's admin client sends the question for end offsets to the leader that it knows. If this broker has died, the client
waits for it until the timeout, although another broker leads meanwhile. Spark then asks with a new client. A broker
that hangs keeps its connections, so each request to it lasts for the timeout of a request. Kafka's clients often notice
this timeout only after twice the time. So it is less than half of 6 s. The driver asks who leads every ten seconds,
so that it forgets such a broker.

The consumer of a task waits 6 s for its position, and 60 s for a record. Then the task fails, and Spark tries it again
with a new consumer. By default it waits for a record as long as ``spark.network.timeout`` says. Many attempts of ten
minutes would hide for more than an hour that a partition has no leader.
"""


def read_stream(
    spark: SparkSession, topic: Topic, settings: Settings, start: Offsets | None, longest_wait: timedelta
) -> DataFrame:
    """Stream the records of a topic: key, value, topic, partition, offset, timestamp, timestampType, headers.

    The query fails if retention has deleted records that it has not read, unless the settings accept the loss.

    Args:
        start: the first offsets that a new checkpoint reads; None reads from the beginning of the topic.
        longest_wait: how long records may wait for a full micro-batch; zero: not at all.
    """
    limits = {"maxOffsetsPerTrigger": str(settings.max_offsets_per_trigger)}
    if longest_wait:
        limits["minOffsetsPerTrigger"] = limits["maxOffsetsPerTrigger"]
        limits["maxTriggerDelay"] = f"{longest_wait // timedelta(milliseconds=1)}ms"
    records: DataFrame = (
        _subscribe(spark.readStream, topic, settings)
        .option("startingOffsets", "earliest" if start is None else _offsets(topic, start, settings))
        .option("failOnDataLoss", str(not settings.accept_data_loss).lower())
        .options(**limits)
        .options(**_PATIENCE)
        .load()
    )
    return records


def read_batch(spark: SparkSession, topic: Topic, settings: Settings, start: Offsets, end: Offsets) -> DataFrame:
    """Read the records of a topic from ``start`` (inclusive) to ``end`` (exclusive), in the columns of a stream."""
    records: DataFrame = (
        _subscribe(spark.read, topic, settings)
        .option("startingOffsets", _offsets(topic, start, settings))
        .option("endingOffsets", _offsets(topic, end, settings))
        .load()
    )
    return records


def _subscribe(reader: Any, topic: Topic, settings: Settings) -> Any:
    return (
        reader.format("kafka")
        .options(**kafka_connection(settings))
        .option("subscribe", settings.name_of(topic))
        .option("includeHeaders", "true")
        # A till may use transactions. The invoices of an aborted transaction do not count.
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
        .option("kafka.max.poll.records", _MOST_OF_A_POLL)
    )


def _offsets(topic: Topic, offsets: Offsets, settings: Settings) -> str:
    """Offsets in the JSON of Spark's Kafka source."""
    return json.dumps({settings.name_of(topic): {str(partition): offset for partition, offset in offsets.items()}})
