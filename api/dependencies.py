"""The dependencies of the routers. FastAPI injects them."""

from collections.abc import AsyncGenerator
from ssl import SSLContext
from typing import Annotated, Any

from fastapi import Depends, Request

from api.commands.service import CommandService
from api.current_programme import CurrentProgramme
from api.events.balances import BalanceEvents, History
from api.events.streams import EventStreams
from api.http.metrics import Metrics
from api.http.parameters import StoreName
from api.operations import Operations
from api.routing.locator import Locator
from api.routing.lookup import Lookup
from api.routing.owner_only import OwnerOnly
from api.routing.peer_client import PeerClient
from api.routing.problems import UnknownStore
from api.routing.scatter_gather import ScatterGather
from api.security.gate import Security
from services.commands.log import CommandLog
from services.domain.programme import Programme
from services.interactive_queries.local import LocalInstance
from services.interactive_queries.reports import PeerReports
from services.ledger.queries import LedgerQueries
from services.state_stores import catalogue
from services.state_stores.materialiser import LocalStores
from services.state_stores.store import StateStore


class Dependencies:
    """The parts of one app.

    Args:
        version_0: the programme that is in force before a version is published.
        history: reads older records of a changelog.
        tls: the certificate that this app shows to peers, and the authorities that it trusts.
        operations: the work of operators.
        security: None if callers need no credentials.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what an app consists of
        self,
        local: LocalInstance,
        reports: PeerReports,
        metrics: Metrics,
        command_log: CommandLog,
        version_0: Programme,
        ledger: LedgerQueries,
        history: History,
        tls: SSLContext,
        operations: Operations,
        security: Security | None,
    ) -> None:
        self.local = local
        self.reports = reports
        self.metrics = metrics
        self.ledger = ledger
        self.stores = local.stores
        self.locator = Locator(local, reports)
        self.security = security
        self.peers = PeerClient(reports, local.membership.group, security.hops if security else None, tls)
        self.lookup = Lookup(local, self.locator, self.peers, metrics)
        self.scatter_gather = ScatterGather(local, self.locator, self.peers)
        self.operations = operations
        self.streams = EventStreams(operations.settings.most_event_streams)
        self.balance_events = BalanceEvents(local, self.locator, self.peers, self.lookup, self.streams, history)
        owner_only = OwnerOnly(local, self.locator, self.peers)
        is_upgrade = security is not None and security.accepts_unsigned_forwards
        self.commands = CommandService(self.stores, self.lookup, owner_only, command_log, is_keyed=not is_upgrade)
        self.programme = CurrentProgramme(self.stores.by_name[catalogue.PROGRAMMES], version_0)
        metrics.watch(self.stores, *([security.keys.earliest_expiry] if security else []))


class Part:
    """Provides an attribute of ``Dependencies``."""

    def __init__(self, name: str) -> None:
        self.name = name

    # FastAPI runs plain functions in a thread, but a coroutine in the event loop.
    async def __call__(self, request: Request) -> Any:
        return getattr(request.app.state.dependencies, self.name)


BalanceEventsDep = Annotated[BalanceEvents, Depends(Part("balance_events"))]
CommandsDep = Annotated[CommandService, Depends(Part("commands"))]
LedgerDep = Annotated[LedgerQueries, Depends(Part("ledger"))]
LocalDep = Annotated[LocalInstance, Depends(Part("local"))]
LookupDep = Annotated[Lookup, Depends(Part("lookup"))]
LocatorDep = Annotated[Locator, Depends(Part("locator"))]
MetricsDep = Annotated[Metrics, Depends(Part("metrics"))]
OperationsDep = Annotated[Operations, Depends(Part("operations"))]
ProgrammeDep = Annotated[CurrentProgramme, Depends(Part("programme"))]
ScatterGatherDep = Annotated[ScatterGather, Depends(Part("scatter_gather"))]
StreamsDep = Annotated[EventStreams, Depends(Part("streams"))]
StoresDep = Annotated[LocalStores, Depends(Part("stores"))]


async def store_by_name(stores: StoresDep, store: StoreName) -> StateStore:
    """The store of the path. Raises UnknownStore."""
    if found := stores.by_name.get(store):
        return found
    raise UnknownStore(stores=list(stores.by_name))


async def place_of_stream(request: Request, streams: StreamsDep) -> AsyncGenerator[None]:
    """Hold a place for an event stream until the end of its response, or of its refusal. Raises TooManyStreams."""
    with streams.hold_place(request):
        yield


PLACE_OF_STREAM = Depends(place_of_stream)
StoreOfPath = Annotated[StateStore, Depends(store_by_name)]
