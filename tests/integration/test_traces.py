"""Traces of real processes: from the till to the webhook, and through a forward between two instances."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from infra.local.ports import HOST, free_port
from infra.local.stack import environment_of
from pipelines.queries.fan_out import FAN_OUT
from pipelines.queries.loyalty import LOYALTY_QUERY
from pipelines.runtime.query_metrics import ProgressMetrics
from schemas import topics
from services import tracing
from services.commands.identity import command_id
from services.open_telemetry import add_ids
from services.settings import Settings
from tests.support.builders import IDS
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS, headers_of, read_all, records_of
from tests.support.processes import ApiProcess, running_ledger, wait_until_shared
from tests.support.traces import ReceivedSpan, received_spans
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.webhooks import Deployment, Receiver, receiving

ALL = {"prime": 1, "home-delivery": 1}
NONE = {"repeats": 0, "broken": 0, "returns": 0, "exchanges": 0, "offline": 0}
SIMULATE = [
    "simulate",
    "--count=2",
    "--customers=2",
    "--seed=1",
    *(f"--{each}={share}" for each, share in (ALL | NONE).items()),
]
TILL = "loyalty-till", "publish pos-invoices"
READ, REDEEM = "GET /v1/customers/{card}/balance", "POST /v1/customers/{card}/redemptions"
Step = tuple[str, str]
"""A process and the name of its span."""
LOST: Step = ("", "a span that the receiver does not have")
Edge = tuple[Step, Step | None]
"""A step and its parent. The first step of a trace has none."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Receives the spans of all processes of the test and of this one, and notifications, which it refuses once."""
    with receiving() as found:
        found.answers["/hook"] = lambda _, before: (204 if before else 503, {})
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{HOST}:{found.port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        monkeypatch.setenv("LOYALTY_LOG_FORMAT", "json")
        monkeypatch.setattr(tracing.Switch, "spans", None)
        tracing.start("loyalty-pipeline")
        yield found


@contextmanager
def pipeline(spark: Any, settings: Settings) -> Iterator[list[Any]]:
    """The fan-out and the loyalty query, with the listener of the pipeline. Yields the lines of its log."""
    listener: Any = ProgressMetrics()
    spark.streams.addListener(listener)
    queries = []
    try:
        with capture_logs(processors=[add_ids]) as lines:
            queries.extend(each.start(spark, IDS, settings, available_now=False) for each in (LOYALTY_QUERY, FAN_OUT))
            yield lines
    finally:
        for query in queries:
            query.stop()
        spark.streams.removeListener(listener)


def steps_of(receiver: Receiver, settings: Settings, root: Step) -> dict[str, set[Edge]]:
    """Trace to its steps, for each trace that begins with this step."""
    found: dict[str, dict[str, ReceivedSpan]] = {}
    for span in received_spans(receiver):
        found.setdefault(span.trace, {})[span.identity] = span

    def step(span: ReceivedSpan | None) -> Step:
        return (span.process, span.name.replace(settings.topic_prefix, "")) if span else LOST

    steps = {
        trace: {(step(span), step(spans.get(span.parent)) if span.parent else None) for span in spans.values()}
        for trace, spans in found.items()
    }
    return {trace: edges for trace, edges in steps.items() if (root, None) in edges}


@pytest.mark.usefixtures("topics_created")
def test_an_invoice_and_a_redemption_are_connected_spans(
    spark: Any, settings: Settings, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spans of each trace are connected: two invoices in one micro-batch, a redemption and a read.

    The redemption and the read go to the instance that does not own the customer. No span has the card.
    """
    settings = settings.model_copy(update={"log_format": "json", "standby_replicas": 0})
    webhooks = Deployment(settings, receiver, tmp_path, free_port(), tmp_path / "webhooks.log")
    webhooks.configure("crm,kinds: [earned, reserved]")
    with processes(settings, webhooks, tmp_path, monkeypatch) as instances:
        publish_two_invoices(settings)
        wait_until_served(instances)
        with pipeline(spark, settings) as lines:
            receiver.wait(4, seconds=2 * DEADLINE_SECONDS)
            card = records_of(settings, topics.POS_INVOICES)[0]["CustomerCardNo"]
            asked, owner = asked_and_owner(instances, card)
            read(instances[asked], card)
            redeem(instances[asked], instances[owner], card)
            receiver.wait(6, seconds=DEADLINE_SECONDS)

            sold = steps_of_an_invoice(owner)
            invoices = await_traces(receiver, settings, TILL, [sold, sold])
            await_the_balance(receiver, settings, owner)
            redeemed = steps_of_a_redemption(asked, owner)
            (redemption,) = await_traces(receiver, settings, (asked, REDEEM), [redeemed])
            await_traces(receiver, settings, (asked, READ), [steps_of_a_read(asked, owner)])

    check_links(received_spans(receiver), invoices)
    assert not any(card.encode() in request.body for request in receiver.of("/v1/traces"))
    check_log_of_the_pipeline(lines, invoices, redemption)
    assert {*invoices, redemption} >= traces_in_the_log(webhooks) != set()
    assert {*invoices, redemption} == traces_of_notifications(receiver)
    assert sent(settings, topics.POS_INVOICES) == sent(settings, topics.SHIPMENT)


@contextmanager
def processes(
    settings: Settings, webhooks: Deployment, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, ApiProcess]]:
    """Two instances of the API, the webhooks and the ledger. Yields the instances by the names in their spans."""
    with ExitStack() as stack:
        instances = {}
        for name in "ab":
            monkeypatch.setenv("OTEL_SERVICE_NAME", name)
            own = settings.model_copy(update={"state_dir": directory / name})
            instances[name] = stack.enter_context(ApiProcess(own, directory / f"{name}.log"))
        monkeypatch.delenv("OTEL_SERVICE_NAME")
        stack.enter_context(webhooks.running())
        stack.enter_context(running_ledger(settings, 0, directory / "ledger.log"))
        yield instances


def publish_two_invoices(settings: Settings) -> None:
    """Run the till in a process of its own. Both invoices have the same card."""
    program = [sys.executable, "-c", "from services.cli import app; app()", *SIMULATE]
    subprocess.run(program, env=environment_of(settings), check=True, timeout=KAFKA_TIMEOUT_SECONDS)


def wait_until_served(instances: dict[str, ApiProcess]) -> None:
    """Wait until both instances are ready, and each of them owns partitions."""
    for each in instances.values():
        each.wait_until_ready()
    wait_until_shared([*instances.values()])


def asked_and_owner(instances: dict[str, ApiProcess], card: str) -> list[str]:
    """The instance that does not own the balance of the card, and the one that does."""

    def is_owner(name: str) -> bool:
        return instances[name].url == owner_of(instances[name], "customer-balances", card)

    return sorted(instances, key=is_owner)


def steps_of_an_invoice(owner: str) -> set[Edge]:
    """The steps of each of the two invoices. One of them also has the step of the balance."""
    return {
        (TILL, None),
        *((each, TILL) for each in of_the_account(owner)),
        (("loyalty-pipeline", "micro-batch of fan-out"), TILL),
    } - {balance_step(owner)}


def balance_step(owner: str) -> Edge:
    """Both invoices of the card lead to one balance. It continues the trace of the last invoice."""
    return (owner, "apply loyalty-balances"), TILL


def steps_of_a_read(asked: str, owner: str) -> set[Edge]:
    return {
        ((asked, READ), None),
        ((asked, "forward"), (asked, READ)),
        ((owner, READ), (asked, "forward")),
    }


def steps_of_a_redemption(asked: str, owner: str) -> set[Edge]:
    return {
        ((asked, REDEEM), None),
        ((asked, "forward"), (asked, REDEEM)),
        ((owner, REDEEM), (asked, "forward")),
        ((owner, "publish loyalty-decisions"), (owner, REDEEM)),
        ((owner, "apply loyalty-decisions"), (owner, "publish loyalty-decisions")),
        ((owner, "publish loyalty-commands"), (owner, REDEEM)),
        *((each, (owner, "publish loyalty-commands")) for each in of_the_account(owner)),
        ((owner, "apply loyalty-decisions"), (owner, "publish loyalty-commands")),
    }


def of_the_account(owner: str) -> set[Step]:
    """The processes that read an event or the records of its entry, with one owner of the card."""
    return {
        ("loyalty-pipeline", "micro-batch of loyalty"),
        (owner, "apply loyalty-balances"),
        ("loyalty-ledger", "append to the ledger"),
        ("loyalty-webhooks", "deliver a notification"),
    }


def owner_of(asked: ApiProcess, store: str, key: str) -> str:
    url: str = asked.http.get(f"/v1/stores/{store}/metadata/{key}").json()["active"]
    return url


def read(asked: ApiProcess, card: str) -> None:
    """Read the balance after both invoices."""
    assert 200 == asked.http.get(f"/v1/customers/{card}/balance?minSequence=2&timeout=20").status_code


def redeem(asked: ApiProcess, owner: ApiProcess, card: str) -> None:
    """Reserve 0.01 points with a command whose record the owner of the card keeps, so that there is one hop."""
    path = f"/v1/customers/{card}/redemptions"
    keys = map(str, range(1000))
    key = next(each for each in keys if owner.url == owner_of(asked, "decisions", command_id("POST", path, each)))
    headers = {"Idempotency-Key": key}
    answer = asked.http.post(path, json={"points": "0.01"}, headers=headers, params={"timeout": 30})
    assert answer.status_code in {201, 202}, answer.text


def await_traces(receiver: Receiver, settings: Settings, root: Step, expected: list[set[Edge]]) -> list[str]:
    """Wait until the traces that begin with this step have the expected steps. Returns their ids.

    A busy machine may move a partition, and another instance then applies the record too. All steps are connected.
    """

    def missing() -> list[set[Edge]]:
        found = steps_of(receiver, settings, root).values()
        return [wanted - steps for wanted, steps in zip_longest(expected, found, fillvalue=set())]

    with receiver.changed:
        receiver.changed.wait_for(lambda: not any(missing()), DEADLINE_SECONDS)
    found = steps_of(receiver, settings, root)
    assert [set()] * len(expected) == missing(), found
    for steps in found.values():
        assert [root] == [step for step, parent in steps if parent is None]
        assert LOST not in {parent for _, parent in steps}
    return [*found]


def await_the_balance(receiver: Receiver, settings: Settings, owner: str) -> None:
    """Wait until the trace of an invoice has the step of the balance."""

    def is_applied() -> bool:
        return any(balance_step(owner) in steps for steps in steps_of(receiver, settings, TILL).values())

    with receiver.changed:
        assert receiver.changed.wait_for(is_applied, DEADLINE_SECONDS)


def check_links(spans: list[ReceivedSpan], traces: list[str]) -> None:
    """The spans of one micro-batch link to each other."""
    one, other = traces
    of_batch = {each.trace: each.links for each in spans if each.name == "micro-batch of loyalty"}
    assert ({other}, {one}) == (of_batch[one], of_batch[other])


def check_log_of_the_pipeline(lines: list[Any], invoices: list[str], redemption: str) -> None:
    """The line of a micro-batch has the trace of one of its events."""
    logged = {line.get("trace_id") for line in lines if line["event"] == "batch" and line["query"] == "loyalty"}
    assert redemption in logged
    assert logged & {*invoices}


def traces_in_the_log(webhooks: Deployment) -> set[str]:
    """The traces that the log of the webhooks names at its attempts. It has one line a minute for each endpoint."""
    return {line["trace_id"] for line in map(json.loads, webhooks.log.read_text().splitlines()) if "attempt" in line}


def traces_of_notifications(receiver: Receiver) -> set[str]:
    return {each.headers["traceparent"].split("-")[1] for each in receiver.of("/hook")}


def sent(settings: Settings, topic: topics.Topic) -> list[bytes]:
    """The traceparents of a topic's records."""
    return sorted(headers_of(message)["traceparent"] for message in read_all(settings, topic))
