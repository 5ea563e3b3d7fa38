"""Detects new versions of the loyalty programme. The queries that use it must then start again in time."""

from datetime import timedelta
from functools import partial

import structlog
from confluent_kafka import KafkaException, TopicPartition

from schemas.topics import LOYALTY_PROGRAMMES
from services.clock import boot_seconds
from services.messaging.clients import consumer, replaced_if_lost
from services.messaging.publishing import BROKER_TIMEOUT, PublishError, find_topic
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.programmes.topic import published_versions
from services.settings import Settings

log = structlog.get_logger()

CLIENT_ID = "loyalty-pipeline"

_TIMEOUT = 1.0
_SHORTEST_NOTICE = timedelta(seconds=10)


class ProgrammeUnknownError(RuntimeError):
    """Kafka has not answered for so long that an unknown version may be in force."""


class ProgrammeWatch:
    """Watches loyalty-programmes. Close it after use.

    A version is published some time before it takes effect. The setting LOYALTY_PROGRAMME_NOTICE is this time. So
    queries that start again within this time have never used an outdated version. When the end offset changes, the
    watch reads the topic and counts the versions, because a refused publication also changes the offset.

    Raises PublishError if the topic does not exist, ProgrammeError if a version cannot be read, and
    SchemaRegistryUnavailableError.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._notice = max(settings.programme_notice, _SHORTEST_NOTICE).total_seconds()
        self._new_consumer = partial(consumer, settings, CLIENT_ID)
        self._consumer = self._new_consumer()
        self._partition = TopicPartition(settings.name_of(LOYALTY_PROGRAMMES), 0)
        find_topic(self._consumer, self._partition.topic)
        self._end = self._end_offset(BROKER_TIMEOUT)
        self._versions = len(published_versions(settings))
        self._checked = boot_seconds()
        self._is_away = False

    def has_changed(self) -> bool:
        """Whether a version was added since the last call.

        Raises ProgrammeUnknownError if the topic could not be read for the time of the notice. Otherwise the queries
        could use an outdated version. Raises ProgrammeError if a new version cannot be read.
        """
        now = boot_seconds()
        try:
            end = self._end_offset(_TIMEOUT)
            versions = self._versions if end == self._end else len(published_versions(self._settings))
        except (KafkaException, PublishError, SchemaRegistryUnavailableError) as error:
            # Events may still arrive. But a version that is not known here takes effect only after the notice.
            if now - self._checked > self._notice:
                raise ProgrammeUnknownError(
                    f"Kafka or the Schema Registry has not answered for {now - self._checked:.0f} s: {error}. This is "
                    "longer than LOYALTY_PROGRAMME_NOTICE, so a version of the programme that is not known here may be "
                    "in effect. Start the pipeline again when both answer: it continues where it was"
                ) from error
            if not self._is_away:
                log.warning("Kafka does not answer", brokers=self._settings.kafka_bootstrap_servers)
                self._is_away = True
            self._consumer = replaced_if_lost(self._consumer, self._new_consumer, self._settings)
            return False
        if self._is_away:
            log.info("Kafka answers again")
            self._is_away = False
        # This time includes the read of the versions.
        is_new, seconds = versions != self._versions, boot_seconds() - self._checked
        if is_new and seconds > self._notice:
            log.error(
                "a version of the programme may have taken effect while this process stood still; run `loyalty audit`, "
                "which finds events that were decided by the former version",
                seconds=round(seconds),
            )
        self._end, self._versions, self._checked = end, versions, now
        return is_new

    def _end_offset(self, timeout: float) -> int:
        _, end = self._consumer.get_watermark_offsets(self._partition, timeout=timeout)
        return end

    def close(self) -> None:
        self._consumer.close()
