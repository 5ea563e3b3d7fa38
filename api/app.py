"""The app, from its parts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI

from api import documentation, problems
from api.forwarding import Forwarder, ReportCollector
from api.key_query import KeyQueries
from api.metrics import Metrics, MetricsMiddleware
from api.routers import balances, health, instances
from api.routers import stores as store_queries
from api.scatter import StoreQueries
from services.interactive_queries.cluster import Cluster


def create_app(cluster: Cluster, metrics: Metrics) -> FastAPI:
    """An app that answers for the cluster; it starts the feed of its stores when it starts, and stops it at the end."""
    stores = cluster.local.stores

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loop, membership, forwarder = asyncio.get_running_loop(), cluster.local.membership, Forwarder()
        collector = ReportCollector(forwarder, cluster.metadata, cluster.reports, membership.group)
        app.state.key_queries = KeyQueries(cluster, forwarder, metrics)
        app.state.store_queries = StoreQueries(cluster, forwarder)

        def on_change() -> None:
            stores.waiters.notify_all()
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(collector.collect_soon)

        membership.on_change(on_change)
        stores.waiters.bind(loop)
        stores.feed.start()
        collecting = asyncio.create_task(collector.run())
        yield
        await asyncio.to_thread(stores.feed.stop)
        collecting.cancel()
        await forwarder.close()

    app = FastAPI(
        title="retail-loyalty",
        version="1.0.0",
        summary="Loyalty balances, served from state that the instances share.",
        description=documentation.DESCRIPTION,
        openapi_tags=[
            {"name": "customers", "description": "What customers have."},
            {"name": "discovery", "description": "Who is there, and who has what."},
            {"name": "stores", "description": "What the stores of the table hold."},
            {"name": "operations", "description": "Health and metrics of this instance."},
        ],
        lifespan=lifespan,
    )
    app.state.stores = stores
    app.state.local = cluster.local
    app.state.metadata = cluster.metadata
    app.state.metrics = metrics
    metrics.watch(stores)
    problems.install(app)
    documentation.install(app)
    app.include_router(balances.router)
    app.include_router(instances.router)
    app.include_router(store_queries.router)
    app.include_router(health.router)
    app.add_middleware(MetricsMiddleware, metrics=metrics)
    return app
