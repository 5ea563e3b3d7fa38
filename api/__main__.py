"""``python -m api`` runs one API instance."""

import gc
import signal
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
import uvicorn
from fastapi import FastAPI

from api.app import create_app
from api.dependencies import Dependencies
from api.http.metrics import Metrics
from services.commands.log import KafkaCommandLog
from services.interactive_queries.assignment import GroupAssignment
from services.interactive_queries.local import LocalInstance
from services.interactive_queries.membership import GroupMembership
from services.interactive_queries.reports import PeerReports
from services.ledger.database import LedgerError
from services.ledger.queries import LedgerQueries
from services.logging import configure_logging
from services.messaging.schema_ids import schema_ids
from services.programmes.topic import default_programme
from services.settings import Settings, SettingsError, read_settings
from services.state_stores import catalogue
from services.state_stores.materialiser import Materialiser
from services.state_stores.memory import open_memory
from services.state_stores.rocksdb import StateDirectory, StateDirectoryInUseError, rocksdb_options
from services.state_stores.store import LocalStores, state_stores
from services.state_stores.waiters import SequenceWaiters

# Requests in flight may take this long after SIGTERM. Longer long polls are cut off.
_GRACE_SECONDS = 5


def build_app(settings: Settings, directory: StateDirectory, membership: GroupMembership) -> FastAPI:
    """Compose the app from stores that follow the changelogs in Kafka and from the group of instances."""
    metrics, waiters, reports = Metrics(), SequenceWaiters(), PeerReports()
    stores = state_stores(catalogue.stores(schema_ids(settings), settings.top_customers_threshold))
    stores_of: defaultdict[str, list[str]] = defaultdict(list)
    for name, store in stores.items():
        stores_of[settings.name_of(store.definition.changelog)].append(name)
    on_disk = [(topic, number) for topic, names in stores_of.items() for number in directory.partitions_of(names[0])]
    assignment = GroupAssignment(membership, reports, settings.standby_replicas, frozenset(on_disk), stores_of)
    materialiser = Materialiser(
        list(stores.values()),
        settings,
        open_partition=open_memory if settings.state_store == "memory" else directory.open_rocksdb(rocksdb_options()),
        assignment=assignment,
        waiters=waiters,
        observe_freshness=metrics.observe_freshness,
    )
    local = LocalInstance(LocalStores(stores, materialiser, waiters), membership, settings)
    command_log, ledger = KafkaCommandLog(settings), LedgerQueries(settings.ledger_url)
    return create_app(Dependencies(local, reports, metrics, command_log, default_programme(settings), ledger))


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises StateDirectoryInUseError if another process uses the state directory."""
    directory = StateDirectory(settings.state_dir)
    membership = GroupMembership(settings, settings.advertised_url)
    app = build_app(settings, directory, membership)
    # All present objects live until the end. The garbage collector need not examine them again and again.
    gc.freeze()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.api_host,
            port=settings.api_port,
            loop="uvloop",
            http="httptools",
            # Paths contain card numbers, and writing a line costs more than serving a lookup.
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            server_header=False,
        )
    )

    def stop(_: int, __: FrameType | None) -> None:
        # Leave the group first: the peers take over while this instance finishes its requests.
        membership.begin_to_leave()
        server.should_exit = True

    # uvicorn raises the handled signals again when it has stopped. Without our handlers they would kill the process.
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    server.run()
    directory.release()
    if not server.started:
        raise typer.Exit(1)


def main(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Directory of the local stores, for one process.")] = None,
    application_server: Annotated[
        str | None, typer.Option(help="URL at which the other instances reach this one.")
    ] = None,
    standby_replicas: Annotated[
        int | None, typer.Option(min=0, help="Number of standby copies of each partition.")
    ] = None,
) -> None:
    """Serve balances and commands over HTTP. Options override the environment variables LOYALTY_…."""
    options = {
        "api_host": host,
        "api_port": port,
        "state_dir": state_dir,
        "application_server": application_server,
        "standby_replicas": standby_replicas,
    }
    try:
        settings = read_settings(**options)
        configure_logging(settings)
        serve(settings)
    except (SettingsError, StateDirectoryInUseError, LedgerError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
