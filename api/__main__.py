"""``python -m api``: one API instance. The only place where its parts meet."""

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
from api.http.metrics import Metrics
from services.commands.log import KafkaCommandLog
from services.interactive_queries.assignment import GroupAssignment
from services.interactive_queries.local import LocalInstance
from services.interactive_queries.membership import GroupMembership
from services.interactive_queries.metadata import Cluster
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
from services.state_stores.rocksdb import RocksDbTuning, StateDirectory, StateDirectoryInUseError
from services.state_stores.store import LocalStores, state_stores
from services.state_stores.waiters import SequenceWaiters

# Requests in flight get this long after SIGTERM; longer long polls are cut off.
_GRACE_SECONDS = 5


def build_app(settings: Settings, directory: StateDirectory, membership: GroupMembership) -> FastAPI:
    """The app with real stores that follow the real changelogs, and with the other instances of its group."""
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
        open_partition=open_memory if settings.state_store == "memory" else directory.open_rocksdb(RocksDbTuning()),
        assignment=assignment,
        waiters=waiters,
        observe_freshness=metrics.observe_freshness,
    )
    local = LocalInstance(LocalStores(stores, materialiser, waiters), membership, settings)
    return create_app(
        Cluster.of(local, reports),
        metrics,
        KafkaCommandLog(settings),
        default_programme(settings),
        LedgerQueries(settings.ledger_url),
    )


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises StateDirectoryInUseError at once if another process has the directory."""
    directory = StateDirectory(settings.state_dir)
    membership = GroupMembership(settings, settings.advertised_url)
    app = build_app(settings, directory, membership)
    # What is here by now stays for good; the collector need not look through all of it again and again.
    gc.freeze()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.api_host,
            port=settings.api_port,
            loop="uvloop",
            http="httptools",
            # Paths hold card numbers, and a line per request costs more than the request.
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            server_header=False,
        )
    )

    def stop(_: int, __: FrameType | None) -> None:
        # First the group: the others take over while requests in flight are finished here.
        membership.begin_to_leave()
        server.should_exit = True

    # When it is done, uvicorn raises the signals it has handled once more: without a handler of ours a death by signal.
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    server.run()
    directory.release()
    if not server.started:
        raise typer.Exit(1)


def main(
    host: Annotated[str | None, typer.Option(help="Where to listen.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Local stores; one process a directory.")] = None,
    application_server: Annotated[
        str | None, typer.Option(help="URL under which the other instances reach this one.")
    ] = None,
    standby_replicas: Annotated[
        int | None, typer.Option(min=0, help="Instances that keep a warm copy of each partition beside its owner.")
    ] = None,
) -> None:
    """Serve balances and commands over HTTP. Options go before LOYALTY_… environment variables."""
    given = {
        "api_host": host,
        "api_port": port,
        "state_dir": state_dir,
        "application_server": application_server,
        "standby_replicas": standby_replicas,
    }
    try:
        settings = read_settings(**given)
        configure_logging(settings)
        serve(settings)
    except (SettingsError, StateDirectoryInUseError, LedgerError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
