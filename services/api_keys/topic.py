"""Reads and publishes API keys in the compacted topic api-keys."""

from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from schemas import topics
from services.api_keys.keys import ApiKey
from services.messaging import clients, publishing
from services.messaging.avro import decoder, encoder
from services.messaging.publishing import BROKER_TIMEOUT, PublishError, connected_producer, find_topic
from services.messaging.schema_ids import schema_ids
from services.settings import Settings

CLIENT_ID = "loyalty-keys"


class _Record(NamedTuple):
    key: bytes
    value: bytes


def publish_key(key: ApiKey, settings: Settings) -> None:
    """Publish the present state of a key. Raises PublishError if the broker does not acknowledge it."""
    topic = settings.name_of(topics.API_KEYS)
    value = encoder(topics.API_KEYS, schema_ids(settings))(key.to_record())
    publishing.publish([_Record(key.key_id.encode(), value)], connected_producer(settings, CLIENT_ID, [topic]), topic)


def read_keys(settings: Settings) -> dict[str, ApiKey]:
    """All keys by id, in the order in which they were made.

    Raises PublishError if no broker answers or the topic does not exist, and UndecodableError for a damaged record.
    """
    topic = settings.name_of(topics.API_KEYS)
    consumer = clients.bounded_consumer(settings, CLIENT_ID, log_level=0)
    try:
        find_topic(consumer, topic)
        decode = decoder(topics.API_KEYS, schema_ids(settings))
        keys = [ApiKey.from_record(decode(value)) for value in _values(consumer, topic)]
    except KafkaException as error:
        raise PublishError(f"topic {topic}: {error.args[0].str()}") from error
    finally:
        consumer.close()
    latest = {key.key_id: key for key in keys}
    return dict(sorted(latest.items(), key=lambda each: each[1].created_time))


def _values(consumer: Consumer, topic: str) -> Iterator[bytes]:
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    while True:
        message = consumer.poll(BROKER_TIMEOUT)
        if message is None:
            raise PublishError(f"topic {topic}: the broker gave no record for {BROKER_TIMEOUT:.0f} s")
        if error := message.error():
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                return
            raise KafkaException(error)
        if value := message.value():
            yield value
