"""Notices new versions of the loyalty programme."""

from confluent_kafka import TopicPartition

from schemas.topics import LOYALTY_PROGRAMMES
from services.messaging.clients import consumer
from services.messaging.publishing import BROKER_TIMEOUT, find_topic
from services.settings import Settings


class ProgrammeWatch:
    """Looks at what is added to loyalty-programmes after it was made. To be closed.

    Raises PublishError if there is no such topic.
    """

    def __init__(self, settings: Settings) -> None:
        self._consumer = consumer(settings, "loyalty-pipeline")
        name = settings.name_of(LOYALTY_PROGRAMMES)
        find_topic(self._consumer, name)
        # Asked for now: "the end" as an offset would be the end at some time after this.
        _, end = self._consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=BROKER_TIMEOUT)
        self._consumer.assign([TopicPartition(name, 0, end)])

    def has_changed(self) -> bool:
        """Whether something was added since this was last asked."""
        found = False
        while message := self._consumer.poll(0):
            found = found or message.error() is None
        return found

    def close(self) -> None:
        self._consumer.close()
