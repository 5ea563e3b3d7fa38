"""``python -m services.webhooks``: delivers notifications to endpoints. The only place where its parts meet."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Annotated

import stamina.instrumentation
import structlog
import typer
from confluent_kafka import KafkaException
from prometheus_client import REGISTRY, start_http_server

from schemas import topics
from services.logging import configure_logging
from services.messaging.dead_letters import DeadLetterWriter
from services.messaging.publishing import PublishError, connected_producer
from services.messaging.schema_ids import SchemaRegistryUnavailableError, schema_ids
from services.settings import Settings, SettingsError, read_settings
from services.webhooks.delivery import Delivery, http_client
from services.webhooks.dispatcher import EndpointDispatcher
from services.webhooks.endpoints import Endpoint, EndpointsError, load
from services.webhooks.metrics import Metrics

log = structlog.get_logger()


async def serve(endpoints: Sequence[Endpoint], settings: Settings, metrics: Metrics) -> None:
    """Deliver until SIGTERM or SIGINT; if one endpoint's dispatcher fails, all stop, and its error is raised."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Each dispatcher waits for Kafka in a thread: with fewer of them, endpoints would wait for one another.
    loop.set_default_executor(ThreadPoolExecutor(2 * len(endpoints) + 2))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    connected_producer(settings, "loyalty-webhooks", [settings.name_of(topics.LOYALTY)])
    dead_letters, ids = DeadLetterWriter(settings, "loyalty-webhooks"), schema_ids(settings)
    async with AsyncExitStack() as opened:
        dispatchers = []
        for endpoint in endpoints:
            client = await opened.enter_async_context(http_client())
            deliver = Delivery(endpoint, client, metrics).deliver
            dispatchers.append(EndpointDispatcher(endpoint, settings, ids, deliver, dead_letters, metrics))
        running = [asyncio.create_task(dispatcher.run(stopping)) for dispatcher in dispatchers]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        stopping.set()
        ended = await asyncio.gather(*running, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome


def main(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Read the endpoints and their secrets, say what they are, and end.")
    ] = False,
) -> None:
    """Deliver loyalty notifications to webhooks. Settings come from LOYALTY_… environment variables."""
    try:
        settings = read_settings()
        endpoints = load(settings.webhooks_file)
        if check:
            for endpoint in endpoints:
                kinds = ", ".join(sorted(endpoint.kinds))
                typer.echo(f"{endpoint.name}: {kinds}; {len(endpoint.secrets)} secret(s), {endpoint.attempts} tries")
            return
        configure_logging(settings)
        # Its lines have the URLs in them, and those can hold tokens.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        stamina.instrumentation.set_on_retry_hooks([])
        start_http_server(settings.webhooks_metrics_port, settings.metrics_host)
        log.info("delivering", endpoints=[endpoint.name for endpoint in endpoints])
        asyncio.run(serve(endpoints, settings, Metrics(REGISTRY)))
    except KafkaException as error:
        _stop(f"Kafka: {error.args[0].str()}")
    except OSError as error:
        _stop(f"{error.filename or 'I/O'}: {error.strerror or error}")
    except (SettingsError, EndpointsError, PublishError, SchemaRegistryUnavailableError) as error:
        _stop(str(error))


def _stop(message: str) -> None:
    for line in message.splitlines():
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
