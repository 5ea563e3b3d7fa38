"""A consumer for comparison with a restore: a plain confluent-kafka consumer that reads a topic and stores nothing.

``python -m benchmarks.plain_consumer SERVERS TOPIC`` prints the figures from the first records to the end as JSON. The
topic needs at least 100,000 records. With fewer records, most of them arrive before the measurement starts.
"""

import json
import sys
import time

from confluent_kafka import Consumer, TopicPartition

_BATCH = 10_000


def main(servers: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "plain-consumer", "auto.offset.reset": "earliest"})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    places = [TopicPartition(topic, number, 0) for number in partitions]
    left = sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
    consumer.assign(places)
    left -= len(consumer.consume(_BATCH, 30))
    started, cpu_before, records = time.monotonic(), time.process_time(), left
    while left > 0:
        left -= len(consumer.consume(_BATCH, 1))
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu_before
    consumer.close()
    print(json.dumps({"records_per_second": records / seconds, "cpu_microseconds": cpu_seconds / records * 1e6}))


if __name__ == "__main__":
    main(*sys.argv[1:])
