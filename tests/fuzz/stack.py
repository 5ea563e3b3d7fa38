"""Bad inputs through a running stack: records through Kafka and real queries, and bytes over sockets to a real API.

A record must become a dead letter if, and only if, the verdict in this process refuses it. At the end no process may
have ended, and the stack must still process a new invoice.
"""

import time
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import psutil

from infra.local.stack import Service
from schemas import topics
from services.messaging import dead_letters
from services.messaging.clients import producer
from services.verdicts import judge_of
from tests.faults.environment import Environment
from tests.fuzz import kafka, web
from tests.fuzz.report import Row
from tests.fuzz.runner import Chunk, run_inputs, save
from tests.support.builders import IDS
from tests.support.kafka import read_all

NAMES = ("stack-kafka", "stack-sockets")

_TOPICS = (topics.POS_INVOICES, topics.LOYALTY_COMMANDS)

Place = tuple[str, int, int]
"""A topic on the broker, a partition and an offset."""


def run(count: int, commit: str, failures: Path) -> list[Row]:
    """Send this number of records and of connections. Returns a row for Kafka and one for the API."""
    with TemporaryDirectory(prefix="fuzz-") as folder, Environment(Path(folder), api_instances=1) as environment:
        environment.recovered()
        (api,), pipeline = environment.stack.apis, environment.stack.pipeline
        pids = {each.name: each.pid for each in environment.stack.processes}
        before = _memory(pipeline), _memory(api)
        chunks = _through_kafka(environment, count), _over_sockets(api, count)
        environment.recovered()
        grown = _memory(pipeline) - before[0], _memory(api) - before[1]
        ended = [each.name for each in environment.stack.processes if each.pid != pids[each.name]]
    if ended:
        chunks[0].outcomes["crash"] += len(ended)
        chunks[0].failures.append(f"processes ended: {', '.join(ended)}")
    for name, chunk in zip(NAMES, chunks, strict=True):
        save(failures, name, 0, chunk)
    return [
        Row(name, commit).after(chunk, count, grown_by)
        for name, chunk, grown_by in zip(NAMES, chunks, grown, strict=True)
    ]


def _through_kafka(environment: Environment, count: int) -> Chunk:
    """Publish records with headers, half of them on each topic. Wait for the dead letters of all refused records."""
    settings, started = environment.settings, time.perf_counter()
    client = producer(settings, "fuzz", log_level=0)
    for topic, inputs in zip(_TOPICS, (kafka.invoices, kafka.commands), strict=True):
        headers = kafka.headers(Random(f"{topic.name}/headers"))
        for record in islice(inputs(Random(f"{topic.name}/stack")), count // 2):
            given = next(headers).headers
            client.produce(settings.name_of(topic), record.value, record.key, headers=given)
            client.poll(0)
    environment.until("the broker has all records", lambda: client.flush(0.1) == 0)
    sent, refused = 0, set[Place]()
    for topic in _TOPICS:
        judge = judge_of(topic, IDS.known(topic))
        for message in read_all(settings, topic):
            place = (settings.name_of(topic), int(message.partition() or 0), int(message.offset() or 0))
            sent += 1
            if judge(message.value(), message.key()).reason is not None:
                refused.add(place)
    environment.until(f"{len(refused)} dead letters", lambda: len(refused - _set_aside(environment)) == 0)
    environment.settle()
    wrong = sorted(refused ^ _set_aside(environment))
    outcomes = Counter({"set aside": len(refused), "accepted": sent - len(refused), "crash": len(wrong)})
    failures = [f"{each}: only one of the two verdicts refuses it" for each in wrong]
    return Chunk(outcomes, failures, time.perf_counter() - started)


def _set_aside(environment: Environment) -> set[Place]:
    letters = dead_letters.DeadLetters(environment.settings)
    return {(each.topic, *each.origin) for each in letters if each.topic is not None and each.origin is not None}


def _over_sockets(api: Service, count: int) -> Chunk:
    url = urlsplit(api.url)
    address = (str(url.hostname), int(url.port or 0))
    inputs = islice(web.streams(Random("stack-sockets")), count)
    return run_inputs(inputs, lambda stream: web.exchanged(address, stream))


def _memory(service: Service) -> int:
    """The memory of a process and its descendants, in bytes."""
    leader = psutil.Process(service.process.pid)
    return sum(each.memory_info().rss for each in (leader, *leader.children(recursive=True)))
