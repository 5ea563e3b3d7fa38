"""What runs now, and how far each part has read. Every figure comes from the process itself or from Kafka."""

import json
import math
import urllib.error
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.request import OpenerDirector

from confluent_kafka import KafkaException
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from schemas import topics
from services.api_keys.client import opener
from services.messaging import clients
from services.messaging.publishing import PublishError
from services.messaging.topic_reader import watermarks_of
from services.settings import Settings

_SECONDS = 3.0
"""The time for the answer of one process."""
_LAGS = {
    "loyalty_query_lag_records": "query {query}",
    "loyalty_ledger_lag_records": "ledger",
    "loyalty_webhook_lag": "webhook {endpoint}",
}
"""The metrics with the lag of readers, and the names of the readers."""
_REFUSALS = {
    ("api", 401): "refuses the request: set LOYALTY_API_KEY_FILE to the file of a valid API key with the scope operate",
    ("api", 403): "refuses the request: the API key in LOYALTY_API_KEY_FILE needs the scope operate",
    **{
        (part, 401): "refuses the request: set LOYALTY_METRICS_KEY_FILE to a file with the key of its metrics"
        for part in ("pipeline", "ledger", "webhooks")
    },
}
_FRESHNESS = "loyalty_balance_freshness_seconds_bucket"
_SHARES = (0.5, 0.99)


class Part(NamedTuple):
    """A process of the system. ``problem`` says why it does not work; None if it works."""

    name: str
    address: str
    problem: str | None


class Lag(NamedTuple):
    """The records of a topic that a reader has not read yet."""

    reader: str
    topic: str
    records: int


class Freshness(NamedTuple):
    """How fresh the balances of the instance that answered are, since its start, by its histogram.

    Attributes:
        balances: the number of balances that it has read.
        within: by share of the balances (0.5, 0.99): the seconds after the append of the invoice within which that
            share was in the store. It is the upper limit of a bucket; None if it is beyond the last limit.
        longest: the last limit, in seconds.
    """

    balances: int
    within: dict[float, float | None]
    longest: float


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the system at one moment.

    Attributes:
        parts: the processes.
        records: the number of records that each topic has, by topic. Empty if Kafka does not answer.
        lags: of all readers that answered.
        instances: the instances of the API as ``GET /v1/instances`` shows them.
        freshness: how fresh the balances are; None without balances.
    """

    parts: list[Part]
    records: dict[str, int]
    lags: list[Lag]
    instances: list[dict[str, Any]]
    freshness: Freshness | None

    @property
    def dead_letters(self) -> int | None:
        """The number of records in dead-letters; None if it is not known."""
        return self.records.get(topics.DEAD_LETTERS.name)


def status_of(settings: Settings, urls: Mapping[str, str]) -> Status:
    """Ask Kafka and the parts at these URLs: api, pipeline, ledger, webhooks. Each has a few seconds for its answer."""
    records, kafka_problem = _records(settings)
    parts = [Part("kafka", settings.kafka_bootstrap_servers, kafka_problem)]
    samples: list[Sample] = []
    openers = dict.fromkeys(urls, opener(settings.metrics_key_file)) | {"api": opener(settings.api_key_file)}
    for name, url in urls.items():
        try:
            found = list(_samples(openers[name], url))
            samples += found
            problem = _problem(openers[name], url)
        except urllib.error.HTTPError as error:
            problem = _REFUSALS.get((name, error.code), f"answers with status {error.code}")
            error.close()
        except (OSError, ValueError, KeyError) as error:
            cause = getattr(error, "reason", error)  # URLError wraps the error of the connection
            problem = f"no answer: {getattr(cause, 'strerror', None) or cause}"
        parts.append(Part(name, url, problem))
    try:
        instances = _get(openers["api"], f"{urls['api']}/v1/instances")["instances"]
    except (OSError, ValueError, KeyError):
        instances = []
    return Status(parts, records, _lags(samples, settings.topic_prefix), instances, _freshness(samples))


def default_urls(settings: Settings) -> dict[str, str]:
    """The URLs of the parts by the settings. The webhooks are a part if their file exists."""
    host = "127.0.0.1" if settings.metrics_host in ("0.0.0.0", "::") else settings.metrics_host  # noqa: S104  # compared
    ports = {"pipeline": settings.metrics_port, "ledger": settings.ledger_metrics_port}
    if settings.webhooks_file.exists():
        ports["webhooks"] = settings.webhooks_metrics_port
    return {"api": settings.advertised_url} | {name: f"http://{host}:{port}" for name, port in ports.items()}


def _records(settings: Settings) -> tuple[dict[str, int], str | None]:
    """The records in each topic, and why they are not known."""
    diagnosis = clients.ConnectionDiagnosis()
    consumer = clients.bounded_consumer(settings, "loyalty-dead-letters", error_cb=diagnosis.on_error)
    try:
        consumer.list_topics(timeout=_SECONDS)
        spans = {topic.name: watermarks_of(consumer, settings.name_of(topic)) for topic in topics.ALL}
    except KafkaException:
        consumer.poll(0)
        return {}, diagnosis.explain(settings)
    except PublishError as error:
        return {}, str(error)
    finally:
        consumer.close()
    return {name: sum(high - low for low, high in span.values()) for name, span in spans.items()}, None


def _get(part: OpenerDirector, url: str) -> Any:
    return json.loads(_read(part, url))


def _read(part: OpenerDirector, url: str) -> str:
    with part.open(url, timeout=_SECONDS) as response:
        content: bytes = response.read()
    return content.decode()


def _samples(part: OpenerDirector, url: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(_read(part, f"{url}/metrics")):
        yield from family.samples


def _problem(part: OpenerDirector, url: str) -> str | None:
    """Why a part that answers does not work."""
    try:
        report = _get(part, f"{url}/readyz")
    except urllib.error.HTTPError as error:
        report = json.load(error)
    return report.get("kafkaError") or report.get("trouble") or (None if report["ready"] else "restores its stores")


def _lags(samples: Iterable[Sample], prefix: str) -> list[Lag]:
    found: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        if reader := _LAGS.get(sample.name):
            topic = sample.labels.get("topic", topics.LOYALTY.name).removeprefix(prefix)
            found[reader.format(**sample.labels), topic] += int(sample.value)
    return [Lag(reader, topic, records) for (reader, topic), records in sorted(found.items())]


def _freshness(samples: Iterable[Sample]) -> Freshness | None:
    buckets = sorted((float(each.labels["le"]), each.value) for each in samples if each.name == _FRESHNESS)
    if not buckets or not (total := buckets[-1][1]):
        return None
    limits = [(le, count) for le, count in buckets if math.isfinite(le)]
    within = {share: next((le for le, count in limits if count >= share * total), None) for share in _SHARES}
    return Freshness(int(total), within, limits[-1][0])
