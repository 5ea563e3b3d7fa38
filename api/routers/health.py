"""For orchestrators and operators: is it alive, is it ready, what does it measure."""

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.http import problems
from api.schemas.documentation import Liveness, Readiness
from services.state_stores.contract import StoreClosedError
from services.state_stores.store import LocalStores
from services.state_stores.task import StoreTask

router = APIRouter(tags=["operations"])


@router.get("/livez", summary="Restart me?", response_model=Liveness, responses=problems.responses(problems.NotAlive))
async def livez(request: Request) -> Response:
    """200 as long as the thread that follows the changelogs lives and turns; Kafka being away is no reason."""
    stores: LocalStores = request.app.state.stores
    if not stores.materialiser.alive:
        raise problems.NotAlive
    return _json({"alive": True})


@router.get(
    "/readyz",
    summary="Send me traffic?",
    response_model=Readiness,
    responses=problems.responses(problems.NotReady),
)
async def readyz(request: Request) -> Response:
    """200 once every partition has reached the end that its changelog had at the start; details either way.

    It stays 200 while Kafka is away: balances go on being served, `kafkaError` says so, and lag is the last known.
    """
    stores: LocalStores = request.app.state.stores
    ready = stores.materialiser.alive and stores.materialiser.restored
    report = {"ready": ready, "kafkaError": stores.materialiser.kafka_error, "partitions": partition_reports(stores)}
    if not ready:
        raise problems.NotReady(report)
    return _json(report)


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {CONTENT_TYPE_LATEST.split(";")[0]: {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """In Prometheus' text format. No label ever holds a card number."""
    return Response(request.app.state.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


def partition_reports(stores: LocalStores) -> list[dict[str, Any]]:
    return [
        _report(name, task) for name, store in sorted(stores.by_name.items()) for _, task in sorted(store.tasks.items())
    ]


def _report(store: str, task: StoreTask) -> dict[str, Any]:
    progress = task.progress
    return {
        "store": store,
        "partition": task.partition,
        "restored": progress.restored,
        "restoredShare": round(progress.restored_share, 4),
        "resumedFrom": progress.resumed_from,
        "position": progress.position,
        "endOffset": progress.end_offset,
        "lag": progress.lag,
        "entries": entries(task),
        "applied": progress.applied,
        "undecodable": progress.undecodable,
        "ignored": progress.ignored,
        "rebuiltBecause": progress.rebuilt_because,
    }


def entries(task: StoreTask) -> int | None:
    """Keys in the store of a task; None while it closes."""
    try:
        return task.store.count()
    except StoreClosedError:
        return None


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json", headers={"Cache-Control": "no-store"})
