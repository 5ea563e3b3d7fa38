"""Tells the clock of a query up to which append time the query has read its topics.

Spark runs the clock in a separate Python process, which cannot read the checkpoint. So the clock asks this module when
Spark plans a micro-batch. Spark stores the answer in the checkpoint as the offset of the clock. So a replayed batch has
the same time.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from multiprocessing.connection import Listener

import structlog
from confluent_kafka import Consumer, KafkaException
from pyspark.sql import SparkSession

from pipelines.checkpoints.reader import CheckpointReader, Positions
from pipelines.sources.clock import TIMER_DELAY
from schemas.topics import Topic
from services import clock
from services.messaging.clients import bounded_consumer, replaced_if_lost
from services.messaging.topic_reader import first_append_time, watermarks_of
from services.settings import Settings

log = structlog.get_logger()


@cache
def serve_read_progress(spark: SparkSession, checkpoint: str, topics: tuple[Topic, ...], settings: Settings) -> str:
    """Start a thread that answers with ``read_until``, for the life of the process. Returns its address."""
    listener = Listener(family="AF_UNIX")
    names = [settings.name_of(topic) for topic in topics]
    # The query reads the records of an open transaction later, and they already have append times. So the timers must
    # wait for them.
    new_client = partial(bounded_consumer, settings, "loyalty-pipeline", **{"isolation.level": "read_uncommitted"})
    client = new_client()

    def read() -> int:
        nonlocal client
        try:
            return read_until(client, names, CheckpointReader(spark, checkpoint).positions())
        except KafkaException:
            client = replaced_if_lost(client, new_client, settings)
            raise

    threading.Thread(target=_serve, args=(listener, read), name="read-progress", daemon=True).start()
    return str(listener.address)


def _serve(listener: Listener, read: Callable[[], int]) -> None:
    while True:
        # When a query stops, its clock ends and may not read the answer. This thread must continue for the next clock.
        with suppress(OSError), listener.accept() as connection:
            connection.send(_time_or_zero(read))


def _time_or_zero(read: Callable[[], int]) -> int:
    try:
        return read()
    except Exception:  # catch every error, because without an answer the query would wait forever
        log.warning("timers wait, because the read progress is unknown", exc_info=True)
        return 0


def read_until(client: Consumer, topics: Sequence[str], positions: Positions) -> int:
    """The time before which every appended record is in a committed micro-batch, in milliseconds since the epoch.

    Args:
        client: a consumer that also reads open transactions. It keeps its connections until the next call, and reads no
            records in between.
        topics: as named on the broker.
        positions: of the last committed micro-batch.
    """
    # The clock of a broker may be behind by TIMER_DELAY. So every record that is appended from now on has a later time.
    now = clock.now() - TIMER_DELAY
    try:
        return min([now, *(time for topic in topics for time in _unread_times(client, topic, positions, now))])
    finally:
        client.unassign()


def _unread_times(client: Consumer, topic: str, positions: Positions, now: int) -> Iterator[int]:
    """The append time of the first unread record of each partition, ``now`` for a partition without one."""
    for partition, (begin, end) in watermarks_of(client, topic).items():
        position = positions.get(topic, {}).get(partition, 0)
        yield first_append_time(client, topic, partition, max(begin, position), end, now)
