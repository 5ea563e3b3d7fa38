"""Notices new versions of the loyalty programme."""

from confluent_kafka import TopicPartition

from schemas.topics import LOYALTY_PROGRAMMES
from services.messaging.clients import consumer
from services.messaging.publishing import BROKER_TIMEOUT, find_topic
from services.settings import Settings


class ProgrammeWatch:
    """Watches loyalty-programmes for records that are added after its construction. Close it after use.

    Raises PublishError if the topic does not exist.
    """

    def __init__(self, settings: Settings) -> None:
        self._consumer = consumer(settings, "loyalty-pipeline")
        name = settings.name_of(LOYALTY_PROGRAMMES)
        find_topic(self._consumer, name)
        # Asks for the end offset now. The constant for "the end" would mean the end at some later time.
        _, end = self._consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=BROKER_TIMEOUT)
        self._consumer.assign([TopicPartition(name, 0, end)])

    def has_changed(self) -> bool:
        """Whether a version was added since the last call."""
        found = False
        while message := self._consumer.poll(0):
            found = found or message.error() is None
        return found

    def close(self) -> None:
        self._consumer.close()
