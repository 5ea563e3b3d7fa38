"""The app, from its parts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from importlib.metadata import version

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from api.commands.service import Commands
from api.current_programme import CurrentProgramme
from api.http import problems
from api.http.direct import DirectRoutes
from api.http.limits import BodyLimitMiddleware
from api.http.metrics import Metrics, MetricsMiddleware
from api.routers import balances, health, instances, simulation
from api.routers import commands as commands_of_customers
from api.routers import ledger as ledger_of_customers
from api.routers import stores as store_queries
from api.routing.key_reads import KeyReads
from api.routing.lookup import KeyQueries
from api.routing.owner_only import OwnerRequests
from api.routing.peer_client import Forwarder, ReportCollector
from api.routing.scatter_gather import StoreQueries
from api.schemas import documentation
from services.commands.log import CommandLog
from services.domain.programme import Programme
from services.interactive_queries.metadata import Cluster
from services.ledger.queries import LedgerQueries
from services.state_stores import catalogue

_USUAL_RULES = Programme()


class _Application(FastAPI):
    """FastAPI with the look-ups in front of it and of all its middleware."""

    @cached_property
    def _front(self) -> DirectRoutes:
        routes = [*balances.router.routes, *store_queries.look_ups.routes]
        return DirectRoutes(super().__call__, routes, self.state.metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._front(scope, receive, send)


def create_app(
    cluster: Cluster,
    metrics: Metrics,
    command_log: CommandLog,
    version_0: Programme = _USUAL_RULES,
    ledger: LedgerQueries | None = None,
) -> FastAPI:
    """An app that answers for the cluster; it starts the feed of its stores when it starts, and stops it at the end.

    Args:
        version_0: the rules before any version of the loyalty programme is published.
        ledger: answers for entries and statements; closed at the end. None: they are answered with a problem.
    """
    stores = cluster.local.stores

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loop, membership, forwarder = asyncio.get_running_loop(), cluster.local.membership, Forwarder()
        collector = ReportCollector(forwarder, cluster.metadata, cluster.reports, membership.group)
        key_queries = KeyQueries(cluster, forwarder, metrics)
        reads = KeyReads(key_queries)
        commands = Commands(stores, reads, OwnerRequests(cluster, forwarder), command_log)
        app.state.key_queries, app.state.key_reads, app.state.commands = key_queries, reads, commands
        app.state.store_queries = StoreQueries(cluster, forwarder)

        def on_change() -> None:
            stores.waiters.notify_all()
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(collector.collect_soon)

        membership.on_change(on_change)
        stores.waiters.bind(loop)
        stores.materialiser.start()
        collecting = asyncio.create_task(collector.run())
        yield
        await commands.close()
        await asyncio.to_thread(stores.materialiser.stop)
        collecting.cancel()
        await forwarder.close()
        if ledger:
            ledger.close()

    app = _Application(
        title="retail-loyalty",
        version=version("retail-loyalty"),
        summary="Loyalty points: balances from state that the instances share, and commands.",
        description=documentation.DESCRIPTION,
        openapi_tags=[
            {"name": "customers", "description": "What customers have."},
            {"name": "commands", "description": "What is done with points; each exactly once."},
            {"name": "programme", "description": "The rules."},
            {"name": "discovery", "description": "Who is there, and who has what."},
            {"name": "stores", "description": "What the stores of the table hold."},
            {"name": "operations", "description": "Health and metrics of this instance."},
        ],
        lifespan=lifespan,
        # The metrics are our own; to look for a provider of others at every request costs more than a look-up.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.stores = stores
    app.state.local = cluster.local
    app.state.metadata = cluster.metadata
    app.state.metrics = metrics
    app.state.ledger = ledger
    app.state.programme = CurrentProgramme(stores.by_name[catalogue.PROGRAMMES], version_0)
    metrics.watch(stores)
    problems.install(app)
    documentation.install(app)
    app.include_router(balances.router)
    app.include_router(ledger_of_customers.router)
    app.include_router(commands_of_customers.router)
    app.include_router(simulation.router)
    app.include_router(instances.router)
    app.include_router(store_queries.look_ups)
    app.include_router(store_queries.router)
    app.include_router(health.router)
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(MetricsMiddleware, metrics=metrics)
    return app
