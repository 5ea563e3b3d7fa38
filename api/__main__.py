"""``python -m api`` runs one API instance."""

import gc
import logging
import signal
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from fastapi import FastAPI

from api.app import create_app
from api.dependencies import Dependencies
from api.http.metrics import Metrics
from api.http.server import server_of
from api.http.tracing import traced
from api.operations import Operations
from api.security.audit import RequestAudit
from api.security.gate import Security
from api.security.hops import Hops, InstanceSecrets
from api.security.issuer_keys import IssuerKeys
from api.security.known_keys import KnownKeys
from api.security.limits import CallerLimits, FailedLogins
from api.security.own_machine import OwnMachineOnly
from api.security.tokens import TokenVerifier
from services import tracing
from services.audit_trail import AuditTrail
from services.commands.log import CommandLog
from services.errors import UserError
from services.interactive_queries.assignment import GroupAssignment
from services.interactive_queries.local import LocalInstance
from services.interactive_queries.membership import GroupMembership
from services.interactive_queries.reports import PeerReports
from services.ledger.queries import LedgerQueries
from services.logging import WarningLimit, configure_logging
from services.messaging.schema_ids import schema_ids
from services.programmes.topic import default_programme
from services.pseudonyms import pseudonyms
from services.settings import Settings, read_settings
from services.start_up import require_port, require_writable
from services.state_stores import catalogue
from services.state_stores.history import read_key
from services.state_stores.materialiser import LocalStores, Materialiser
from services.state_stores.memory import open_memory
from services.state_stores.rocksdb import StateDirectory, rocksdb_options
from services.state_stores.store import StateStore, state_stores
from services.state_stores.waiters import SequenceWaiters
from services.tls import Certificate, certificate_of, client_context

# Running requests may take this long after SIGTERM. Then they get the problem ``stopping``.
_GRACE_SECONDS = 5


def build_app(
    settings: Settings, directory: StateDirectory, membership: GroupMembership, certificate: Certificate | None
) -> FastAPI:
    """Compose the app: stores that follow the changelogs in Kafka, the group of instances, and the security."""
    metrics, waiters, reports = Metrics(), SequenceWaiters(), PeerReports()
    ids = schema_ids(settings, waits=False)
    stores = state_stores(catalogue.stores(ids, settings.top_customers_threshold), settings.partitions)
    api_keys = state_stores([catalogue.api_keys(ids)]) if settings.api_access == "authenticated" else {}
    stores_of: defaultdict[str, list[str]] = defaultdict(list)
    for name, store in {**stores, **api_keys}.items():
        stores_of[settings.name_of(store.definition.changelog)].append(name)
    if settings.state_store == "memory":
        # Data of an earlier process, which used RocksDB, would stay for ever, also those of erased customers.
        directory.delete([*stores, *api_keys])
    # All stores of a topic hold the same partitions, so the folder of one store is enough.
    on_disk = [(topic, number) for topic, names in stores_of.items() for number in directory.partitions_of(names[0])]
    assignment = GroupAssignment(membership, reports, settings.standby_replicas, frozenset(on_disk), stores_of)
    materialiser = Materialiser(
        [*stores.values(), *api_keys.values()],
        settings,
        open_partition=open_memory if settings.state_store == "memory" else directory.open_rocksdb(rocksdb_options()),
        assignment=assignment,
        waiters=waiters,
        observe_freshness=metrics.freshness.observe,
    )
    local = LocalInstance(LocalStores(stores, materialiser, waiters, internal=api_keys), membership, settings)
    command_log, ledger = CommandLog(settings), LedgerQueries(settings)
    security = _security(settings, api_keys[catalogue.API_KEYS], membership.url, metrics) if api_keys else None
    return create_app(
        Dependencies(
            local,
            reports,
            metrics,
            command_log,
            version_0=default_programme(settings),
            ledger=ledger,
            history=partial(read_key, settings),
            tls=client_context(settings, certificate),
            operations=Operations(settings),
            security=security,
        )
    )


def _security(settings: Settings, keys: StateStore, url: str, metrics: Metrics) -> Security:
    tokens = None
    if settings.token_issuer and settings.token_audience and settings.token_keys:
        tokens = TokenVerifier(settings.token_issuer, settings.token_audience, IssuerKeys(settings.token_keys))
    return Security(
        keys=KnownKeys(keys),
        tokens=tokens,
        hops=Hops(url, InstanceSecrets(settings.instance_secret_file)),
        limits=CallerLimits(settings.rate_limit, settings.most_requests_at_once),
        failed_logins=FailedLogins(settings.failed_login_rate),
        audit=RequestAudit(
            url, pseudonyms(settings.pseudonym_key_file), AuditTrail(settings, metrics.lost_audit_records.inc)
        ),
        accepts_unsigned_forwards=settings.accept_unsigned_forwards,
        cors_origins=tuple(filter(None, settings.cors_origins.split(","))),
    )


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        StartUpError: the port is taken, or the state directory is read-only.
        UserError: another process uses the state directory.
    """
    require_port(settings.api_host, settings.api_port, "LOYALTY_API_PORT")
    require_writable(settings.state_dir, "LOYALTY_STATE_DIR")
    directory = StateDirectory(settings.state_dir)
    copies = None if settings.state_store == "memory" else directory.identity
    membership = GroupMembership(settings, settings.advertised_url, copies)
    certificate = certificate_of(settings)
    app = build_app(settings, directory, membership, certificate)
    # All objects until here live as long as the process. So the garbage collector need not examine them.
    gc.freeze()
    # Limit the warnings that any client can cause with each request.
    for name in ("uvicorn.error", "api.security.hops"):
        logging.getLogger(name).addFilter(WarningLimit())
    # Without credentials, a web page in the user's browser must not send requests.
    entry = OwnMachineOnly(app, settings.advertised_url) if settings.api_access == "loopback" else app

    def leave() -> None:
        # The peers get the partitions while this instance finishes its requests.
        membership.begin_to_leave()
        app.state.dependencies.streams.close()

    server = server_of(traced(entry), settings, certificate, _GRACE_SECONDS, leave)
    # uvicorn raises the handled signals again when it has stopped. Without these handlers they would kill the process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
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
        settings.require_safe_api()
        tracing.start("loyalty-api")
        configure_logging(settings)
        serve(settings)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_status) from error


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name="loyalty api")
