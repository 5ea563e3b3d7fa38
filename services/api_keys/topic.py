"""Reads and publishes API keys in the compacted topic api-keys."""

from confluent_kafka import KafkaException

from schemas import topics
from services.api_keys.keys import ApiKey
from services.messaging import clients, publishing
from services.messaging.avro import decoder, encoder
from services.messaging.publishing import PublishError, connected_producer
from services.messaging.schema_ids import schema_ids
from services.messaging.topic_reader import read_topic
from services.settings import Settings

CLIENT_ID = "loyalty-keys"


def publish_key(key: ApiKey, settings: Settings) -> None:
    """Publish the present state of a key. Raises PublishError if the broker does not acknowledge it."""
    topic = settings.name_of(topics.API_KEYS)
    value = encoder(topics.API_KEYS, schema_ids(settings))(key.to_record())
    publishing.publish([(key.key_id.encode(), value)], connected_producer(settings, CLIENT_ID, [topic]), topic)


def read_keys(settings: Settings) -> dict[str, ApiKey]:
    """All keys by id, in the order in which they were made.

    Raises PublishError if no broker answers or the topic does not exist, and UndecodableError for a damaged record.
    """
    topic = settings.name_of(topics.API_KEYS)
    consumer = clients.bounded_consumer(settings, CLIENT_ID)
    try:
        decode = decoder(topics.API_KEYS, schema_ids(settings))
        values = (message.value() for message in read_topic(consumer, topic))
        keys = [ApiKey.from_record(decode(value)) for value in values if value]
    except KafkaException as error:
        raise PublishError(f"topic {topic}: {error.args[0].str()}") from error
    finally:
        consumer.close()
    latest = {key.key_id: key for key in keys}
    return dict(sorted(latest.items(), key=lambda each: each[1].created_time))
