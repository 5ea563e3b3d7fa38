"""The webhook process: ``python -m services.webhooks`` or ``loyalty webhooks``. This module connects its parts."""

import asyncio
import json
import logging
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Annotated, Any

import structlog
import typer
from confluent_kafka import KafkaException
from prometheus_client import REGISTRY

from schemas import topics
from services import tracing
from services.errors import UserError
from services.health import serve_health
from services.logging import WarningLimit, configure_logging
from services.messaging.publishing import connected_producer
from services.messaging.schema_ids import schema_ids
from services.settings import Settings, read_settings
from services.start_up import require_port
from services.webhooks.dead_letters import DeadLetterWriter
from services.webhooks.delivery import Delivery, http_client
from services.webhooks.dispatcher import EndpointDispatcher
from services.webhooks.endpoints import Endpoint, load
from services.webhooks.metrics import Metrics

log = structlog.get_logger()


def problem(endpoints: Sequence[Endpoint], running: Sequence[EndpointDispatcher]) -> str | None:
    """Why the process cannot deliver now; None if all dispatchers run and can read from Kafka.

    A receiver that does not answer is no problem of the process. Its deliveries wait, and metrics show them.
    """
    if len(running) < len(endpoints):
        return "not connected"
    return next((each.problem for each in running if each.problem), None)


def serve(
    endpoints: Sequence[Endpoint], settings: Settings, metrics: Metrics, running: list[EndpointDispatcher]
) -> None:
    """Deliver until SIGTERM or SIGINT. If one dispatcher fails, all of them stop, and its error is raised.

    Each endpoint has its own thread with an event loop. So an endpoint that blocks its loop, or the threads that
    resolve host names for it, does not delay other endpoints.

    Args:
        running: gets the dispatchers that have started.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    read, written = settings.name_of(topics.LOYALTY), settings.name_of(topics.DEAD_LETTERS)
    # ``connected_producer`` raises PublishError if no broker answers, or if one of the two topics does not exist.
    producer = connected_producer(settings, "loyalty-webhooks", [read, written])
    dead_letters, ids = DeadLetterWriter(producer, written), schema_ids(settings, waits=False)

    async def run(endpoint: Endpoint) -> None:
        async with http_client() as client:
            deliver = Delivery(endpoint, client, metrics).deliver
            dispatcher = EndpointDispatcher(endpoint, settings, ids, deliver, dead_letters, metrics)
            running.append(dispatcher)
            await dispatcher.run(stopping)

    with ThreadPoolExecutor(len(endpoints), "endpoint") as threads:
        loops = [threads.submit(asyncio.run, run(endpoint)) for endpoint in endpoints]
        wait(loops, return_when=FIRST_COMPLETED)
        stopping.set()
    for each in loops:
        each.result()


def main(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Read the endpoints and their secrets, show the endpoints, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: print one JSON object.")] = False,
) -> None:
    """Deliver loyalty notifications to webhooks. LOYALTY_… environment variables configure the process."""
    try:
        settings = read_settings()
        endpoints = load(settings.webhooks_file)
        http_client()  # raises StartUpError for wrong proxies and certificates before the threads start
        if check:
            _show(endpoints, as_json=as_json)
            return
        settings.require_safe_metrics()
        tracing.start("loyalty-webhooks")
        configure_logging(settings)
        # A receiver that is down fails many attempts in each second.
        logging.getLogger("services.webhooks.delivery").addFilter(WarningLimit())
        require_port(settings.metrics_host, settings.webhooks_metrics_port, "LOYALTY_WEBHOOKS_METRICS_PORT")
        running: list[EndpointDispatcher] = []
        with serve_health(settings, settings.webhooks_metrics_port, REGISTRY, lambda: problem(endpoints, running)):
            log.info("delivering", endpoints=[endpoint.name for endpoint in endpoints])
            serve(endpoints, settings, Metrics(REGISTRY), running)
    except KafkaException as error:
        _stop(f"Kafka: {error.args[0].str()}")
    except OSError as error:
        _stop(f"{error.filename or 'I/O'}: {error.strerror or error}")
    except UserError as error:
        _stop(str(error), error.exit_status)


def _show(endpoints: Sequence[Endpoint], *, as_json: bool) -> None:
    shown: list[dict[str, Any]] = [
        {
            "name": each.name,
            "kinds": sorted(each.kinds),
            "secrets": len(each.secrets),
            "attempts": each.attempts,
        }
        for each in endpoints
    ]
    lines = [
        f"{each['name']}: {', '.join(each['kinds'])}; {each['secrets']} secret(s), {each['attempts']} attempts"
        for each in shown
    ]
    typer.echo(json.dumps({"endpoints": shown}) if as_json else "\n".join(lines))


def _stop(message: str, status: int = 1) -> None:
    for line in message.splitlines():
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(status)


if __name__ == "__main__":
    typer.run(main)
