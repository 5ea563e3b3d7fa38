"""The balance look-up."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response

from api import problems
from api.conditional import etag_of, matches
from api.documentation import Balance, problem_responses
from services.state_stores.catalogue import BALANCES
from services.state_stores.contract import StoreClosedError
from services.state_stores.entry import Entry
from services.state_stores.local import LocalStores
from services.state_stores.store import NotServingError

router = APIRouter(prefix="/v1/customers", tags=["customers"])

LONGEST_TIMEOUT_SECONDS = 30
"""Shorter than the idle limits of common proxies (60 s), so that the answer is ours."""

LARGEST_SEQUENCE = 2**63 - 1


@router.get(
    "/{card}/balance",
    summary="A customer's points now",
    response_model=Balance,
    responses={
        200: {"headers": {"ETag": {"description": "The sequence, quoted.", "schema": {"type": "string"}}}},
        304: {"description": "The caller's copy (If-None-Match) is the current one."},
        **problem_responses(
            problems.unknown_customer(),
            problems.invalid_parameters([{"in": ["query", "minSequence"], "reason": "Input should be an integer"}]),
            problems.restoring(2, 0.4),
            problems.starting(2),
            problems.stopping(),
            problems.sequence_not_reached(7, 6),
        ),
    },
)
async def balance(
    request: Request,
    card: Annotated[str, Path(min_length=1, max_length=128, description="CustomerCardNo", examples=["9265846829"])],
    min_sequence: Annotated[
        int,
        Query(
            alias="minSequence",
            ge=0,
            le=LARGEST_SEQUENCE,
            description="Answer only with this sequence or a later one: to read one's own writes.",
        ),
    ] = 0,
    timeout_seconds: Annotated[
        float,
        Query(
            alias="timeout",
            ge=0,
            le=LONGEST_TIMEOUT_SECONDS,
            allow_inf_nan=False,
            description="Seconds to wait for minSequence before 503 sequence-not-reached.",
        ),
    ] = 0,
    if_none_match: Annotated[str | None, Header(description="ETag of an earlier answer.")] = None,
) -> Response:
    """The newest balance that this instance has seen.

    With `minSequence` the answer is never older than that: the request waits up to `timeout` seconds for it.
    """
    stores: LocalStores = request.app.state.stores
    store, key = stores.by_name[BALANCES], card.encode()
    try:
        if min_sequence:
            entry = await stores.waiters.wait(key, min_sequence, timeout_seconds, lambda: store.get(key))
        else:
            entry = store.get(key)
    except NotServingError as error:
        raise _not_serving(error) from error
    except StoreClosedError as error:
        raise problems.stopping() from error
    return _answer(entry, min_sequence, if_none_match)


def _answer(entry: Entry | None, min_sequence: int, if_none_match: str | None) -> Response:
    current = entry.sequence if entry else 0
    if current < min_sequence:
        raise problems.sequence_not_reached(min_sequence, current)
    if entry is None:
        raise problems.unknown_customer()
    headers = {"ETag": etag_of(entry.sequence), "Cache-Control": "private, no-cache"}
    if if_none_match is not None and matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(entry.body, headers=headers, media_type="application/json")


def _not_serving(error: NotServingError) -> problems.ProblemError:
    if error.task is None:
        return problems.starting(error.partition)
    return problems.restoring(error.partition, error.task.progress.restored_share)
