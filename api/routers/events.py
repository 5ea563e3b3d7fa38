"""Pushes changes to programs, as server-sent events."""

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from api.dependencies import PLACE_OF_STREAM, BalanceEventsDep, StoresDep
from api.events.balances import EventId
from api.events.streams import MEDIA_TYPE, TooManyStreams
from api.http import problems
from api.http.parameters import Card
from api.routing.problems import COPY_PROBLEMS, FORWARDING_PROBLEMS, UnknownCustomer
from api.security.permissions import needs
from services.api_keys.keys import Scope
from services.state_stores.catalogue import BALANCES

router = APIRouter(prefix="/v1/customers", tags=["customers"], dependencies=[needs(Scope.BALANCE_READ)])

_EXAMPLE = """event: balance
id: 1767373451000.3.117
data: {"CustomerCardNo":"9265846829","TotalLoyaltyPoints":"417.04","Sequence":3}

"""


@router.get(
    "/{card}/events",
    dependencies=[PLACE_OF_STREAM],
    summary="Each change of a customer's points",
    response_class=Response,
    responses={
        200: {
            "description": "Events until the client closes the connection. Connect again after each end.",
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}, "example": _EXAMPLE}},
        },
        **problems.responses(
            UnknownCustomer, problems.InvalidParameters, *COPY_PROBLEMS, *FORWARDING_PROBLEMS, TooManyStreams
        ),
    },
)
async def balance_events(
    request: Request,
    card: Card,
    events: BalanceEventsDep,
    stores: StoresDep,
    last_event_id: Annotated[
        str | None,
        Header(
            max_length=64,
            description="The id of the last event that the client has received: opened time, sequence and offset. "
            "The stream continues after it.",
            examples=["1767373451000.3.117"],
        ),
    ] = None,
) -> Response:
    """Server-sent events: `balance` for each revision, in order and once.

    Without Last-Event-ID the first event is the current balance.

    `gap`: revisions after the last event have been compacted away, or the client missed more records than an instance
    reads for one client. The current balance follows, or `erased`. `erased`: the account is gone. `card-replaced`: the
    account has moved to the card in `newCard`. A caller that is limited to one card gets no `newCard`.
    """
    last = EventId.parse(last_event_id) if last_event_id is not None else None
    return await events.open(request, stores.by_name[BALANCES], card.encode(), last)
