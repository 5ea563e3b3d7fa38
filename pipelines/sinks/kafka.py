"""The Kafka sink of all pipelines, for streams and batches."""

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.runtime.kafka_connection import kafka_connection
from services.settings import Settings


def write_stream(records: DataFrame, settings: Settings) -> DataStreamWriter:
    """A stream writer to the topics in the column ``topic``. Takes topic, key, value and headers."""
    return records.writeStream.format("kafka").options(**_options(settings))


def write_batch(records: DataFrame, settings: Settings) -> None:
    """Write a batch to the topics in the column ``topic``. Takes topic, key, value and headers."""
    records.write.format("kafka").options(**_options(settings)).save()


def _options(settings: Settings) -> dict[str, str]:
    """Options that keep the producer from losing or repeating records. Spark's sink is at-least-once regardless."""
    return {
        **kafka_connection(settings),
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.compression.type": "lz4",
        "kafka.linger.ms": "5",
        # The broker limits the compressed size of a record, and the producer limits the size before compression. A
        # large record that could be read must fit again, as a dead letter with more headers. Memory is used on demand.
        "kafka.max.request.size": str(64 * 2**20),
        "kafka.buffer.memory": str(128 * 2**20),
        "includeHeaders": "true",
    }
