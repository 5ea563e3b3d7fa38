"""Finds which processes run, and how far each has read. Each figure comes from the process itself or from Kafka."""

import json
import time
import urllib.error
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from http.client import HTTPException
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
from services.settings import Settings, host_in_url
from services.status_figures import Lag, Part, QueryWork, Status
from services.tls import client_context

_SECONDS = 3.0
"""The longest time to wait for the answer of one process."""

_POSITIONS = {"loyalty_query_position": "query {query}", "loyalty_ledger_position": "ledger"}
"""The metrics from which the lags of readers are computed, and the names of the readers. The lags in the
readers' own metrics are as old as their last micro-batch or transaction.
"""

_LAGS = {"loyalty_webhook_lag": "webhook {endpoint}"}
"""The metrics with the lags of other readers, and the names of the readers."""

_Spans = Mapping[str, Mapping[int, tuple[int, int]]]
"""By topic and partition: the first offset, and the end offset."""

_REFUSALS = {
    ("api", 401): "refuses the request: set LOYALTY_API_KEY_FILE to the file of a valid API key with the scope operate",
    ("api", 403): "refuses the request: the API key in LOYALTY_API_KEY_FILE needs the scope operate",
    **{
        (part, 401): "refuses the request: set LOYALTY_METRICS_KEY_FILE to a file with the key of its metrics"
        for part in ("pipeline", "background", "ledger", "webhooks")
    },
}

_FRESHNESS = "loyalty_balance_freshness_seconds_bucket"

_QUERY_COUNTS = {
    "loyalty_query_input_rows_total": "records",
    "loyalty_query_batches_total": "batches",
    "loyalty_query_batch_duration_seconds_sum": "seconds",
}
"""The metrics that count the work of a query, and their names in ``QueryWork``."""


class ApiState(NamedTuple):
    """The state of an API instance: its metrics as text, why it does not work, and the instances that it knows."""

    metrics: str
    problem: str | None
    instances: list[dict[str, Any]]


def status_of(settings: Settings, urls: Mapping[str, str], api: ApiState | None = None) -> Status:
    """Ask Kafka and the parts at these URLs, such as ``default_urls``. Each part has three seconds for its answer.

    Args:
        api: the state of the API instance, if this process is that instance. Without it, the function asks the API.
    """
    spans, kafka_problem = _spans(settings)
    parts = [Part("kafka", settings.kafka_bootstrap_servers, kafka_problem)]
    own_topics = {settings.name_of(topic): topic.name for topic in topics.ALL}
    samples: list[Sample] = []
    instances: list[dict[str, Any]] = api.instances if api else []
    to_api = opener(settings.api_key_file, client_context(settings))
    openers = dict.fromkeys(urls, opener(settings.metrics_key_file)) | {"api": to_api}
    for name, url in urls.items():
        found, problem = _read_part(name, url, openers[name], api if name == "api" else None)
        if any(each.labels["topic"] not in own_topics for each in found if "topic" in each.labels):
            problem = "reads topics of another deployment: compare LOYALTY_TOPIC_PREFIX and the ports of both"
        samples += found
        parts.append(Part(name, url, problem))
    if not api:
        with suppress(OSError, HTTPException, ValueError, KeyError):
            instances = _get(to_api, f"{urls['api']}/v1/instances")["instances"]
    return Status(
        time=time.time(),
        parts=parts,
        appended={name: sum(high for _, high in span.values()) for name, span in spans.items()},
        work=_work(samples),
        balances={float(each.labels["le"]): each.value for each in samples if each.name == _FRESHNESS},
        records={name: sum(high - low for low, high in span.values()) for name, span in spans.items()},
        lags=_lags(samples, spans, own_topics),
        instances=instances,
    )


def dead_letter_reasons(settings: Settings, api: str) -> dict[str, int] | None:
    """The number of dead letters for each reason, the most frequent first. None if the API does not answer.

    ``api`` is the URL of an instance. It reads all dead letters for the answer, so do not ask often.
    """
    with suppress(OSError, HTTPException, ValueError, KeyError):
        to_api = opener(settings.api_key_file, client_context(settings))
        reasons: dict[str, int] = _get(to_api, f"{api}/v1/dead-letters?limit=1")["reasons"]
        return reasons
    return None


def default_urls(settings: Settings) -> dict[str, str]:
    """The URLs of the parts by the settings.

    The second driver is a part if there are two or ``status_urls`` names it. The webhooks are a part if their file
    exists or ``status_urls`` names them.
    """
    host = "127.0.0.1" if settings.metrics_host in ("0.0.0.0", "::") else settings.metrics_host  # noqa: S104  # compared
    ports = {"pipeline": settings.metrics_port, "ledger": settings.ledger_metrics_port}
    if settings.pipeline_drivers > 1:
        ports["background"] = settings.background_metrics_port
    if settings.webhooks_file.exists():
        ports["webhooks"] = settings.webhooks_metrics_port
    here = {name: f"http://{host_in_url(host)}:{port}" for name, port in ports.items()}
    elsewhere = dict(each.rstrip("/").split("=", maxsplit=1) for each in settings.status_urls.split())
    return {"api": settings.advertised_url} | here | elsewhere


def _spans(settings: Settings) -> tuple[_Spans, str | None]:
    """The first offset and the end offset of each partition of the topics, and why some are not known."""
    diagnosis = clients.ConnectionDiagnosis()
    spans: dict[str, dict[int, tuple[int, int]]] = {}
    problem = None
    with closing(clients.bounded_consumer(settings, "loyalty-status", error_cb=diagnosis.on_error)) as consumer:
        try:
            found = consumer.list_topics(timeout=_SECONDS).topics
            for topic in topics.ALL:
                name = settings.name_of(topic)
                if problem and name not in found:  # one missing topic is enough: the search for it takes seconds
                    continue
                try:
                    spans[topic.name] = watermarks_of(consumer, name)
                except PublishError as error:
                    problem = problem or str(error)
        except KafkaException:
            consumer.poll(0)
            problem = diagnosis.explain(settings)
    return spans, problem


def _read_part(name: str, url: str, part: OpenerDirector, state: ApiState | None) -> tuple[list[Sample], str | None]:
    """The metrics of a part, and why it does not work. If ``state`` is given, the part is not asked."""
    try:
        if state:
            return _samples(state.metrics), state.problem
        return _samples(_read(part, f"{url}/metrics")), _problem(part, url)
    except urllib.error.HTTPError as error:
        error.close()
        return [], _REFUSALS.get((name, error.code), f"answers with status {error.code}")
    except (OSError, HTTPException, ValueError, KeyError) as error:
        cause = getattr(error, "reason", error)  # URLError wraps the error of the connection
        return [], f"no answer: {getattr(cause, 'strerror', None) or cause}"


def _get(part: OpenerDirector, url: str) -> Any:
    return json.loads(_read(part, url))


def _read(part: OpenerDirector, url: str) -> str:
    with part.open(url, timeout=_SECONDS) as response:
        content: bytes = response.read()
    return content.decode()


def _samples(metrics: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]


def _work(samples: Iterable[Sample]) -> dict[str, QueryWork]:
    found: dict[str, QueryWork] = {}
    for sample in samples:
        if name := _QUERY_COUNTS.get(sample.name):
            query = sample.labels["query"]
            found[query] = found.get(query, QueryWork())._replace(**{name: sample.value})
    return found


def _problem(part: OpenerDirector, url: str) -> str | None:
    """Why a part that answers does not work."""
    try:
        report = _get(part, f"{url}/readyz")
    except urllib.error.HTTPError as error:
        report = json.load(error)
    return report.get("kafkaError") or report.get("trouble") or (None if report["ready"] else "restores its stores")


def _lags(samples: Iterable[Sample], spans: _Spans, own_topics: Mapping[str, str]) -> list[Lag]:
    found: Counter[tuple[str, str]] = Counter()
    # The lags in the other topics of these readers are only a part: their sum could be 0.
    unknown = set()
    for sample in samples:
        topic = own_topics.get(sample.labels.get("topic", ""))
        if topic is None:
            continue
        if reader := _POSITIONS.get(sample.name):
            if topic not in spans:
                unknown.add(reader.format(**sample.labels))
            elif span := spans[topic].get(int(sample.labels["partition"])):
                found[reader.format(**sample.labels), topic] += max(0, span[1] - int(sample.value))
        if reader := _LAGS.get(sample.name):
            found[reader.format(**sample.labels), topic] += int(sample.value)
    return [Lag(reader, topic, records) for (reader, topic), records in sorted(found.items()) if reader not in unknown]
