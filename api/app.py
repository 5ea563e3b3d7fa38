"""The app, from its parts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import documentation, problems
from api.metrics import Metrics, MetricsMiddleware
from api.routers import balances, health
from services.state_stores.local import LocalStores


def create_app(stores: LocalStores, metrics: Metrics) -> FastAPI:
    """An app that answers from these stores; it starts their feed when it starts, and stops it when it stops."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        stores.waiters.bind(asyncio.get_running_loop())
        stores.feed.start()
        yield
        await asyncio.to_thread(stores.feed.stop)

    app = FastAPI(
        title="retail-loyalty",
        version="1.0.0",
        summary="Loyalty balances, served from local state.",
        description=documentation.DESCRIPTION,
        openapi_tags=[
            {"name": "customers", "description": "What customers have."},
            {"name": "operations", "description": "Health and metrics of this instance."},
        ],
        lifespan=lifespan,
    )
    app.state.stores = stores
    app.state.metrics = metrics
    metrics.watch(stores)
    problems.install(app)
    documentation.install(app)
    app.include_router(balances.router)
    app.include_router(health.router)
    app.add_middleware(MetricsMiddleware, metrics=metrics)
    return app
