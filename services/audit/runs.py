"""The results of `loyalty audit`, as records of the topic audit-runs. They name customers by pseudonyms."""

from schemas.topics import AUDIT_RUNS
from services.messaging import headers
from services.messaging.avro import Record, encoder
from services.messaging.publishing import Publisher, connected_producer
from services.messaging.schema_ids import schema_ids
from services.messaging.topic_reader import decoded
from services.settings import Settings

CLIENT_ID = "loyalty-audit-runs"


def publish_run(run: Record, settings: Settings) -> None:
    """Publish a record AuditRun. Raises PublishError if no broker answers or the topic does not exist."""
    topic = settings.name_of(AUDIT_RUNS)
    identity: str = run["RunID"]
    value = encoder(AUDIT_RUNS, schema_ids(settings))(run)
    with Publisher(connected_producer(settings, CLIENT_ID, [topic])) as publisher:
        publisher.publish(topic, identity.encode(), value, headers.cloud_event(identity, AUDIT_RUNS.value))


def read_runs(settings: Settings) -> list[Record]:
    """All runs that the topic has, the newest first. Raises the errors of ``decoded``."""
    return sorted(decoded(settings, AUDIT_RUNS, CLIENT_ID), key=lambda run: run["EndedTime"], reverse=True)
