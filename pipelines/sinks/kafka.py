"""The Kafka sink of all pipelines, for streams and batches."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.columns.observations import DEAD_LETTER_ROWS, ROWS
from pipelines.sources.kafka_connection import kafka_connection
from schemas import topics
from services.messaging.clients import LARGEST_REQUEST_BYTES
from services.settings import Settings


def write_stream(records: DataFrame, settings: Settings) -> DataStreamWriter:
    """A stream writer of records (topic, key, value and headers) to their topics. It also counts the dead letters."""
    is_dead_letter = F.col("topic") == settings.name_of(topics.DEAD_LETTERS)
    counted = records.observe(DEAD_LETTER_ROWS, F.count_if(is_dead_letter).alias(ROWS))
    return counted.writeStream.format("kafka").options(**_options(settings))


def write_batch(records: DataFrame, settings: Settings) -> None:
    """Write a batch of records (topic, key, value and headers) to their topics."""
    records.write.format("kafka").options(**_options(settings)).save()


def _options(settings: Settings) -> dict[str, str]:
    """Options with which the producer does not lose or repeat records. Spark's sink is still at-least-once."""
    return {
        **kafka_connection(settings),
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.compression.type": "lz4",
        "kafka.linger.ms": "5",
        # A broker that hangs keeps its connections. By default the producer waits 30 s for it.
        "kafka.request.timeout.ms": "5000",
        # The producer allocates memory only when needed.
        "kafka.max.request.size": str(LARGEST_REQUEST_BYTES),
        "kafka.buffer.memory": str(128 * 2**20),
        "includeHeaders": "true",
    }
