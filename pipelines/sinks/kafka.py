"""The Kafka sink, configured in one place."""

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.sources.connection import kafka_connection
from services.settings import Settings


def kafka_options(settings: Settings) -> dict[str, str]:
    """Spark's sink is at-least-once whatever these say; they only keep the producer from adding losses or repeats."""
    return {
        **kafka_connection(settings),
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.compression.type": "lz4",
        "kafka.linger.ms": "5",
        # The broker measures a record compressed, the producer before that: what could be read can be written again,
        # as a dead letter with its headers. Memory is taken as it is needed.
        "kafka.max.request.size": str(64 * 2**20),
        "kafka.buffer.memory": str(128 * 2**20),
        "includeHeaders": "true",
    }


def stream_to_kafka(records: DataFrame, settings: Settings) -> DataStreamWriter:
    """A stream writer to the topics named in the column ``topic``."""
    return records.writeStream.format("kafka").options(**kafka_options(settings))


def write_to_kafka(records: DataFrame, settings: Settings) -> None:
    """Write a batch to the topics named in the column ``topic``."""
    records.write.format("kafka").options(**kafka_options(settings)).save()
