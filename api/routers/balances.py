"""The balance look-up."""

from operator import attrgetter

from fastapi import APIRouter, Request, Response

from api.http import etag, problems
from api.http.parameters import Card, IfNoneMatch, MaxLag, MinSequence, OpenedTime, Timeout
from api.routing.lookup import KeyQueries, KeyQuery
from api.schemas.documentation import FRESHNESS_HEADERS, Balance
from services.state_stores.catalogue import BALANCES
from services.state_stores.definition import ReadConsistency, VersionedValue

router = APIRouter(prefix="/v1/customers", tags=["customers"])

_BODY = attrgetter("body")


@router.get(
    "/{card}/balance",
    summary="A customer's points now",
    response_model=Balance,
    responses={
        200: {"headers": FRESHNESS_HEADERS},
        304: {"description": "The caller's copy (If-None-Match) is the current one.", "headers": FRESHNESS_HEADERS},
        **problems.responses(
            problems.UnknownCustomer,
            problems.InvalidParameters,
            problems.Restoring,
            problems.Starting,
            problems.Stopping,
            problems.Rebalancing,
            problems.TooStale,
            problems.SequenceNotReached,
            problems.NotTheOwner,
            problems.OwnerUnreachable,
            problems.OwnerTimeout,
        ),
    },
)
async def balance(  # noqa: PLR0913, PLR0917 - one parameter a parameter of the request
    request: Request,
    card: Card,
    min_sequence: MinSequence = 0,
    opened_time: OpenedTime = 0,
    timeout_seconds: Timeout = 0,
    max_lag: MaxLag = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The customer's balance; any instance answers for every customer.

    With `minSequence` the answer is never older than that: the request waits up to `timeout` seconds for it.
    While the owner of the customer's partition does not answer, a standby does, and `Loyalty-Stale` says so.
    """
    key_queries: KeyQueries = request.app.state.key_queries
    query = KeyQuery(
        key_queries.store(BALANCES),
        card.encode(),
        lambda entry: _answer(entry, if_none_match),
        ReadConsistency(min_sequence, opened_time),
        timeout_seconds,
        max_lag,
    )
    return await key_queries.answer(request, query)


def _answer(entry: VersionedValue | None, if_none_match: str | None) -> Response:
    if entry is None:
        raise problems.UnknownCustomer
    return etag.answer(entry, _BODY, if_none_match)
