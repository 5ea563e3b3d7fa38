"""Reads the balance of a customer."""

from functools import partial

import orjson
from fastapi import APIRouter, Request, Response

from api.dependencies import LookupDep, StoresDep
from api.http import problems
from api.http.parameters import Card, IfNoneMatch, MaxLag, MinSequence, OpenedTime, Timeout
from api.http.responses import ENTRY_RESPONSES
from api.routing.lookup import KeyRead
from api.routing.problems import (
    COPY_PROBLEMS,
    FORWARDING_PROBLEMS,
    CardMoved,
    NotTheOwner,
    SequenceNotReached,
    TooStale,
    UnknownCustomer,
)
from api.schemas.balances import Balance
from api.security.caller import Caller
from api.security.permissions import MOVED, caller_of, moved, needs
from services.api_keys.keys import Scope
from services.state_stores.catalogue import BALANCES
from services.state_stores.definition import ReadConsistency, VersionedValue

router = APIRouter(prefix="/v1/customers", tags=["customers"], dependencies=[needs(Scope.BALANCE_READ)])


def _body(caller: Caller, entry: VersionedValue) -> bytes:
    """The balance. Raises CardMoved if the account has moved."""
    if MOVED in entry.body:
        raise moved(caller, orjson.loads(entry.body)["MovedTo"])
    return entry.body


@router.get(
    "/{card}/balance",
    summary="A customer's points now",
    response_model=Balance,
    responses={
        **ENTRY_RESPONSES,
        **problems.responses(
            UnknownCustomer,
            CardMoved,
            problems.InvalidParameters,
            *COPY_PROBLEMS,
            *FORWARDING_PROBLEMS,
            TooStale,
            SequenceNotReached,
            NotTheOwner,
        ),
    },
)
async def balance(  # noqa: PLR0913, PLR0917 - each parameter of the request is a parameter
    request: Request,
    card: Card,
    lookup: LookupDep,
    stores: StoresDep,
    min_sequence: MinSequence = 0,
    opened_time: OpenedTime = 0,
    timeout_seconds: Timeout = 0,
    max_lag: MaxLag = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The balance of a customer. Any instance answers for every customer.

    With `minSequence` the balance is never older than that. The request waits up to `timeout` seconds for it. For a
    replaced card the response is 410, and the problem names the new card. If the owner of the customer's partition does
    not respond, a standby responds with `Loyalty-Stale: true`.
    """
    consistency = ReadConsistency(min_sequence, opened_time)
    read = KeyRead(stores.by_name[BALANCES], card.encode(), consistency, timeout_seconds, max_lag, request)
    found = await lookup.query(read)
    return found.response(partial(_body, caller_of(request)), UnknownCustomer, if_none_match)
