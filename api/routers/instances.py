"""Who is there, and who has what: discovery for callers and for the other instances."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Path, Response

from api.dependencies import LocalDep, LocatorDep, StoreOfPath
from api.http import problems
from api.schemas.documentation import InstanceList, KeyMetadata, StoreList, StoreMetadata
from services.interactive_queries.reports import HeldPartition, InstanceReport
from services.state_stores.assignment import Role

router = APIRouter(prefix="/v1", tags=["discovery"])


@router.get("/instances", summary="All instances", response_model=InstanceList)
async def instances(locator: LocatorDep, local: LocalDep) -> Response:
    """The instances of the group, as this one knows them, and the copies that each holds by its own account."""
    found = [
        {
            "url": url,
            "self": url == local.url,
            "reachable": locator.why_suspect(url) is None,
            "partitions": [_held(each) for each in report.partitions] if report else [],
        }
        for url, report in locator.instances()
    ]
    return _json({"instances": found})


@router.get("/instances/local", summary="This instance", response_model=InstanceReport)
async def local_instance(local: LocalDep) -> Response:
    """What this instance tells the others of itself."""
    return _json(local.report().model_dump(mode="json", by_alias=True))


@router.get("/stores", summary="All stores", response_model=StoreList)
async def stores(local: LocalDep) -> Response:
    """The table of stores, the same on every instance."""
    table = [
        {
            "name": name,
            "kind": store.definition.kind,
            "changelog": store.definition.changelog.name,
            "partitions": store.definition.changelog.partitions,
        }
        for name, store in local.stores.by_name.items()
    ]
    return _json({"stores": table})


@router.get(
    "/stores/{store}/metadata",
    summary="Who has a store",
    response_model=StoreMetadata,
    responses=problems.responses(problems.UnknownStore, problems.InvalidParameters),
)
async def store_metadata(locator: LocatorDep, store: StoreOfPath) -> Response:
    """The instances with partitions of the store, as owner or as standby."""
    name = store.definition.name
    found = []
    for url, report in locator.instances():
        held = [each for each in report.partitions if each.store == name] if report else []
        if held:
            found.append({"url": url, **{role.value: _partitions(held, role) for role in Role}})
    return _json({"store": name, "instances": found})


@router.get(
    "/stores/{store}/metadata/{key:path}",
    summary="Who has a key",
    response_model=KeyMetadata,
    responses=problems.responses(problems.UnknownStore, problems.InvalidParameters, problems.Rebalancing),
)
async def key_metadata(
    locator: LocatorDep,
    store: StoreOfPath,
    key: Annotated[str, Path(max_length=512, description="Need not exist.", examples=["9265846829"])],
) -> Response:
    """The owner of the key's partition, and the standbys that reads fall back to, the nearest to the end first."""
    found = locator.of_key(store, key.encode())
    return _json(
        {"store": found.store, "partition": found.partition, "active": found.active, "standbys": list(found.standbys)}
    )


def _held(partition: HeldPartition) -> dict[str, Any]:
    return partition.model_dump(mode="json", by_alias=True)


def _partitions(held: list[HeldPartition], role: Role) -> list[int]:
    return sorted(each.partition for each in held if each.role is role)


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json", headers={"Cache-Control": "no-store"})
