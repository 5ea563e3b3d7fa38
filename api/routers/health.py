"""Health and metrics, for orchestrators and operators."""

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.dependencies import MetricsDep, StoresDep
from api.http import problems
from api.http.responses import NO_STORE, json_response
from api.schemas.health import Liveness, Readiness
from api.security.permissions import needs
from services.api_keys.keys import Scope
from services.state_stores.contract import StoreError
from services.state_stores.materialiser import LocalStores
from services.state_stores.task import StoreTask

router = APIRouter(tags=["operations"])


class NotReady(
    problems.Unavailable,
    code="not-ready",
    title="The instance is not ready",
    example={"ready": False, "kafkaError": None, "partitions": []},
):
    """The instance restores its stores after the start, or it restores a damaged global store. Wait, unless kafkaError
    says why the instance cannot follow Kafka.
    """


class NotAlive(
    problems.Problem, status=HTTPStatus.SERVICE_UNAVAILABLE, code="not-alive", title="The instance must be restarted"
):
    """The materialiser thread has ended or hangs. The log has the reason. Restart the instance."""


@router.get("/livez", summary="Must I restart it?", response_model=Liveness, responses=problems.responses(NotAlive))
async def livez(stores: StoresDep) -> Response:
    """200 while the materialiser thread works. It stays 200 while Kafka is unavailable."""
    if not stores.materialiser.alive:
        raise NotAlive
    return json_response({"alive": True}, caching=NO_STORE)


@router.get(
    "/readyz", summary="Can I send requests to it?", response_model=Readiness, responses=problems.responses(NotReady)
)
async def readyz(stores: StoresDep) -> Response:
    """200 after every partition has reached the end that its changelog had at the start. Both bodies give the details.

    It stays 200 while the instance restores partitions that it gets later. Otherwise all instances could be 503 at the
    same time. A damaged global store makes it 503, because each instance reads only its own copy of such a store.

    It stays 200 while Kafka is unavailable. Then the instance still serves balances, `kafkaError` gives the reason, and
    each lag is the last known one.
    """
    materialiser = stores.materialiser
    ready = materialiser.alive and materialiser.ready and _global_stores_serve(stores)
    partitions = _partition_reports(stores)
    report: dict[str, Any] = {"ready": ready, "kafkaError": materialiser.kafka_error, "partitions": partitions}
    if not ready:
        raise NotReady(**report)
    return json_response(report, caching=NO_STORE)


@router.get(
    "/metrics",
    dependencies=[needs(Scope.OPERATE)],
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {CONTENT_TYPE_LATEST.split(";")[0]: {"schema": {"type": "string"}}}}},
)
async def metrics(metrics: MetricsDep) -> Response:
    """The metrics in the text format of Prometheus. No label contains a card."""
    return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


def _global_stores_serve(stores: LocalStores) -> bool:
    everything = stores.all_by_name.values()
    tasks = [task for store in everything if store.definition.is_global for task in store.tasks.values()]
    return all(task.serving for task in tasks)


def _partition_reports(stores: LocalStores) -> list[dict[str, Any]]:
    return [
        _report(name, task)
        for name, store in sorted(stores.all_by_name.items())
        for _, task in sorted(store.tasks.items())
    ]


def _report(store: str, task: StoreTask) -> dict[str, Any]:
    progress = task.progress
    try:
        entries = task.store.count()
    except StoreError:
        entries = None
    return {
        "store": store,
        "partition": task.partition,
        "restored": task.serving,
        "restoredShare": round(progress.restored_share, 4),
        "resumedFrom": progress.resumed_from,
        "position": progress.position,
        "endOffset": progress.end_offset,
        "lag": progress.lag,
        "entries": entries,
        "applied": progress.applied,
        "undecodable": progress.undecodable,
        "ignored": progress.ignored,
        "rebuiltBecause": task.store.damage or progress.rebuilt_because,
    }
