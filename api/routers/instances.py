"""Discovery for clients and peers: the instances, and the partitions and keys that they hold."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from api.dependencies import LocalDep, LocatorDep, StoreOfPath
from api.http import problems
from api.http.responses import NO_STORE, json_response
from api.routing.locator import Locator
from api.routing.problems import Rebalancing, UnknownStore
from api.schemas.instances import InstanceList, KeyMetadata, StoreList, StoreMetadata
from api.schemas.stores import LONGEST_KEY
from api.security.permissions import needs
from services.api_keys.keys import Scope
from services.interactive_queries.local import LocalInstance
from services.interactive_queries.reports import HeldPartition, InstanceReport
from services.state_stores.assignment import Role

router = APIRouter(prefix="/v1", tags=["discovery"], dependencies=[needs(Scope.OPERATE)])


@router.get("/instances", summary="All instances", response_model=InstanceList)
async def instances(locator: LocatorDep, local: LocalDep) -> Response:
    """The instances of the group that this instance knows, and the copies that each of them reports."""
    return json_response({"instances": instance_list(locator, local)}, caching=NO_STORE)


def instance_list(locator: Locator, local: LocalInstance) -> list[dict[str, Any]]:
    """The members of ``Instance`` for each instance of the group."""
    return [
        {
            "url": url,
            "self": url == local.url,
            "reachable": locator.why_suspect(url) is None,
            "kafkaError": report.kafka_error if report else None,
            "partitions": [_body(each) for each in report.partitions] if report else [],
        }
        for url, report in locator.instances()
    ]


@router.get("/instances/local", summary="This instance", response_model=InstanceReport)
async def local_instance(local: LocalDep) -> Response:
    """The report of this instance. Its peers read it."""
    return json_response(_body(local.report()), caching=NO_STORE)


@router.get("/stores", summary="All stores", response_model=StoreList)
async def stores(local: LocalDep) -> Response:
    """All state stores. The list is the same on every instance."""
    found = [
        {
            "name": name,
            "kind": store.definition.kind,
            "changelog": store.definition.changelog.name,
            "partitions": store.partitions,
        }
        for name, store in local.stores.by_name.items()
    ]
    return json_response({"stores": found}, caching=NO_STORE)


@router.get(
    "/stores/{store}/metadata",
    summary="The instances that hold a store",
    response_model=StoreMetadata,
    responses=problems.responses(UnknownStore, problems.InvalidParameters),
)
async def store_metadata(locator: LocatorDep, store: StoreOfPath) -> Response:
    """The instances with partitions of the store, and their role for each partition."""
    name = store.definition.name
    found = []
    for url, report in locator.instances():
        held = [each for each in report.partitions if each.store == name] if report else []
        if held:
            partitions = {role.value: sorted(each.partition for each in held if each.role is role) for role in Role}
            found.append({"url": url, **partitions})
    return json_response({"store": name, "instances": found}, caching=NO_STORE)


@router.get(
    "/stores/{store}/metadata/{key:path}",
    summary="The instances that hold a key",
    response_model=KeyMetadata,
    responses=problems.responses(UnknownStore, problems.InvalidParameters, Rebalancing),
)
async def key_metadata(
    locator: LocatorDep,
    store: StoreOfPath,
    key: Annotated[
        str, Path(max_length=LONGEST_KEY, description="The key does not have to exist.", examples=["9265846829"])
    ],
) -> Response:
    """The owner of the key's partition, and the standbys that can serve reads if the owner does not respond.

    The standby with the highest position comes first.
    """
    return json_response(asdict(locator.of_key(store, key.encode())), caching=NO_STORE)


def _body(report: InstanceReport | HeldPartition) -> dict[str, Any]:
    return report.model_dump(mode="json", by_alias=True)
