"""``python -m api``: one API instance. The only place where its parts meet."""

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
import uvicorn
from fastapi import FastAPI

from api.app import create_app
from api.metrics import Metrics
from services.logging import configure_logging
from services.messaging.schema_ids import schema_ids
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.assignment import AllPartitions
from services.state_stores.directory import StateDirectory, StateDirectoryInUseError, open_memory
from services.state_stores.local import LocalStores
from services.state_stores.materialiser import Materialiser
from services.state_stores.rocksdb import RocksDbTuning
from services.state_stores.store import StateStore
from services.state_stores.waiters import SequenceWaiters

# Requests in flight get this long after SIGTERM; longer long polls are cut off.
_GRACE_SECONDS = 5


def build_app(settings: Settings, directory: StateDirectory) -> FastAPI:
    """The app with real stores that follow the real changelogs."""
    metrics, waiters = Metrics(), SequenceWaiters()
    stores = [StateStore(definition) for definition in catalogue.stores(schema_ids(settings))]
    materialiser = Materialiser(
        stores,
        settings,
        open_partition=open_memory if settings.state_store == "memory" else directory.open_rocksdb(RocksDbTuning()),
        assignment=AllPartitions(),
        waiters=waiters,
        observe_freshness=metrics.observe_freshness,
    )
    return create_app(LocalStores({store.definition.name: store for store in stores}, materialiser, waiters), metrics)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises StateDirectoryInUseError at once if another process has the directory."""
    directory = StateDirectory(settings.state_dir)
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(settings, directory),
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
) -> None:
    """Serve loyalty balances over HTTP. Options go before LOYALTY_… environment variables."""
    given = {"api_host": host, "api_port": port, "state_dir": state_dir}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    configure_logging(settings)
    try:
        serve(settings)
    except StateDirectoryInUseError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
