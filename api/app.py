"""Builds the FastAPI app from its parts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.metadata import version

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute

from api.console import pages
from api.dependencies import Dependencies
from api.http import documentation, error_handlers, openapi, problems
from api.http.bodies import BodyLimitMiddleware
from api.http.lookup_routes import LookupApp
from api.http.parameters import refuse_unknown_parameters
from api.routers import (
    balances,
    commands,
    events,
    health,
    instances,
    ledger,
    operations,
    programmes,
    simulation,
    status,
    stores,
)
from api.routing.report_collector import ReportCollector


def create_app(dependencies: Dependencies) -> FastAPI:
    """Create the app. Its lifespan starts the materialiser and closes all parts at the end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        local, peers = dependencies.local, dependencies.peers
        loop, materialiser, waiters = asyncio.get_running_loop(), local.stores.materialiser, local.stores.waiters
        collector = ReportCollector(peers, dependencies.locator, dependencies.reports)

        def on_change() -> None:
            waiters.notify_all()
            with suppress(RuntimeError):  # The event loop has ended, so nothing needs the reports.
                loop.call_soon_threadsafe(collector.collect_soon)

        local.membership.on_change(on_change)
        waiters.bind(loop)
        dependencies.streams.bind(loop)
        materialiser.start()
        collecting = asyncio.create_task(collector.run())
        yield
        await dependencies.commands.close()
        if dependencies.security:
            await asyncio.to_thread(dependencies.security.audit.close)
        await asyncio.to_thread(materialiser.stop)
        collecting.cancel()
        await peers.close()
        dependencies.ledger.close()

    app = LookupApp(
        title="retail-loyalty",
        version=version("retail-loyalty"),
        summary="Loyalty points: balances from state that the instances share, and commands.",
        description=openapi.DESCRIPTION,
        openapi_tags=openapi.TAGS,
        lifespan=lifespan,
        # A redirect to the path without a slash would name the host of the request, which may be that of a proxy.
        redirect_slashes=False,
        openapi_url=None,  # see documentation.install
        docs_url=None,
        redoc_url=None,
        # FastAPI would look for a telemetry provider at each request, which costs more than a lookup. This project has
        # metrics and traces of its own.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.dependencies = dependencies
    app.serve_lookups([*balances.router.routes, *stores.lookups.routes], dependencies)
    error_handlers.install(app)
    openapi.install(app, needs_credentials=dependencies.security is not None)
    app.router.routes.extend(_routes())
    pages.install(app)
    documentation.install(app)
    app.add_middleware(BodyLimitMiddleware)
    return app


@cache
def _routes() -> list[BaseRoute]:
    """The routes, which all apps share. FastAPI prepares a route at its first request, which takes longer than the
    request.
    """
    all_routes = APIRouter()
    refusals = problems.responses(problems.InvalidParameters)
    for router in (
        balances.router,
        events.router,
        ledger.router,
        ledger.invoices,
        commands.router,
        simulation.router,
        instances.router,
        status.router,
        operations.router,
        programmes.router,
        stores.lookups,
        stores.router,
    ):
        all_routes.include_router(router, dependencies=[Depends(refuse_unknown_parameters)], responses=refusals)
    all_routes.include_router(health.router)
    return all_routes.routes
