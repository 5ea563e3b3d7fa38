"""Commands of customers and clerks on points."""

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from api.commands.decisions import FORWARDING_SECONDS, wait_seconds
from api.commands.problems import (
    CardBlocked,
    CardInUse,
    CardReplaced,
    CommandErased,
    CommandInFlight,
    CommandNotVisible,
    IdempotencyKeyMissing,
    IdempotencyKeyReused,
    InsufficientPoints,
    KafkaUnavailable,
    RedemptionNotOpen,
    RedemptionPending,
    SameCustomer,
    TooManyCommands,
    TooManyPoints,
    TooManyRedemptions,
    UnknownCommand,
    UnknownRedemption,
)
from api.commands.submission import CommandOfRequest, Timeout, accepted_response, public_members, require_own_card
from api.dependencies import CommandsDep
from api.http import problems
from api.http.bodies import JsonRoute
from api.http.parameters import Card, refuse_body
from api.http.problems import Problem
from api.http.responses import SEQUENCE, json_response, text_headers
from api.routing.peer_messages import seconds_left
from api.routing.problems import (
    COPY_PROBLEMS,
    FORWARDING_PROBLEMS,
    NotTheOwner,
    OwnerInDoubt,
    TooStale,
    UnknownCustomer,
)
from api.schemas.commands import (
    Adjustment,
    CanOpenAnAccount,
    CardChange,
    Command,
    Merging,
    NamesAnAccount,
    Redemption,
    Replacement,
    Transfer,
)
from api.security.permissions import FOLLOWS_COMMANDS, caller_of, needs
from services.api_keys.keys import Scope
from services.codecs.records import PENDING
from services.domain import events

router = APIRouter(prefix="/v1", tags=["commands"], route_class=JsonRoute)

NamedCard = Annotated[Card, NamesAnAccount]
CommandId = Annotated[str, Path(max_length=64, examples=["0b9f0e5c-7a53-5f0d-8f43-5ffb1a0c9a3e"])]

_OWNER_PROBLEMS = (*COPY_PROBLEMS, *FORWARDING_PROBLEMS, NotTheOwner)
_COMMAND_PROBLEMS = (
    IdempotencyKeyMissing,
    *problems.BODY_PROBLEMS,
    CommandInFlight,
    IdempotencyKeyReused,
    CommandErased,
    problems.InvalidParameters,
    KafkaUnavailable,
    CommandNotVisible,
    OwnerInDoubt,
    TooManyCommands,
    *_OWNER_PROBLEMS,
)
_HEADERS = text_headers({"Location": "The path of the command's result.", SEQUENCE: "AccountSequence of the response."})
_ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": Command,
        "description": "The time ended before the command was decided, or before the balance showed it. "
        "Ask at Location, or repeat the same request.",
        "headers": {"Location": _HEADERS["Location"], "Retry-After": problems.RETRY_AFTER},
    }
}


_Endpoint = Callable[..., Awaitable[Response]]
_Decorator = Callable[[_Endpoint], _Endpoint]


def _route(
    method: str,
    path: str,
    scope: Scope,
    summary: str,
    done: HTTPStatus,
    *refusals: type[Problem],
    takes_body: bool = True,
) -> _Decorator:
    """Declare a route that executes a command.

    Args:
        done: the status of the response when the command is done.
        refusals: the problems of this command, in addition to those of all commands.
        takes_body: False: the route refuses a body.
    """
    return router.api_route(
        path,
        methods=[method],
        dependencies=[needs(scope), *([] if takes_body else [Depends(refuse_body)])],
        summary=summary,
        response_model=Command,
        status_code=done,
        responses={
            done.value: {"description": "Done, and the next read of the balance shows it.", "headers": _HEADERS},
            **_ACCEPTED,
            **problems.responses(*refusals, *_COMMAND_PROBLEMS),
        },
    )


@_route(
    "POST",
    "/customers/{card}/redemptions",
    Scope.POINTS_REDEEM,
    "Reserve points",
    HTTPStatus.CREATED,
    UnknownCustomer,
    InsufficientPoints,
    TooManyRedemptions,
    CardBlocked,
    CardReplaced,
)
async def reserve(card: NamedCard, body: Redemption, command: CommandOfRequest) -> Response:
    """Begin a redemption: reserve points until it is captured or voided, or until it lapses at ExpiresTime.

    Capture and void take the RedemptionID of the response. A card without a balance is unknown, and gets no account.
    """
    fields = body.normalized()
    return await command.response(events.Reserve, card, fields, points=fields["points"])


def _ends_redemption(name: str, summary: str) -> _Decorator:
    return _route(
        "POST",
        f"/redemptions/{{redemption}}/{name}",
        Scope.POINTS_REDEEM,
        summary,
        HTTPStatus.OK,
        UnknownRedemption,
        RedemptionPending,
        RedemptionNotOpen,
        takes_body=False,
    )


@_ends_redemption("capture", "Spend reserved points")
async def capture(redemption: CommandId, command: CommandOfRequest) -> Response:
    """End a redemption and take its points. It must be open: not captured, voided or lapsed before."""
    return await command.response(events.Capture, None, redemption_id=redemption)


@_ends_redemption("void", "Give back reserved points")
async def void(redemption: CommandId, command: CommandOfRequest) -> Response:
    """End a redemption and free its points.

    Points whose expiry has passed expire at once. The response still counts them, so read the balance.
    """
    return await command.response(events.Void, None, redemption_id=redemption)


@_route(
    "POST",
    "/customers/{card}/adjustments",
    Scope.POINTS_ADJUST,
    "Correct the points by hand",
    HTTPStatus.CREATED,
    UnknownCustomer,
    InsufficientPoints,
    TooManyPoints,
    CardReplaced,
)
async def adjust(card: Annotated[NamedCard, CanOpenAnAccount], body: Adjustment, command: CommandOfRequest) -> Response:
    """Add points, or take them. The entry keeps the reason and the actor.

    Points for a card without a balance open an account. Points can be taken from such a card only as a debt.
    """
    fields = body.normalized()
    own = {"points": fields["points"], "allow_negative": fields["allow_negative"]}
    return await command.response(events.Adjust, card, fields, **own)


@_route(
    "POST",
    "/transfers",
    Scope.POINTS_REDEEM,
    "Give points to another customer",
    HTTPStatus.CREATED,
    UnknownCustomer,
    InsufficientPoints,
    SameCustomer,
    CardBlocked,
    CardReplaced,
)
async def transfer(body: Transfer, command: CommandOfRequest) -> Response:
    """Move available points from one card to another. They keep the time at which they expire.

    When the transfer is done, the points have left the sender. The receiver gets them a moment later. If the receiver's
    total would be above 10^15 points, the points go back to the sender. A sender without a balance is unknown, and gets
    no account.
    """
    fields = body.normalized()
    own = {"points": fields["points"], "counterparty": body.to_card}
    return await command.response(events.Transfer, body.from_card, fields, **own)


def _changes_card(name: str, summary: str, *refusals: type[Problem]) -> _Decorator:
    path, expected = f"/customers/{{card}}/{name}", (UnknownCustomer, CardReplaced)
    return _route("POST", path, Scope.CARD_MANAGE, summary, HTTPStatus.CREATED, *expected, *refusals)


@_changes_card("block", "Block a card")
async def block(card: NamedCard, body: CardChange, command: CommandOfRequest) -> Response:
    """Stop redemptions and transfers from a card, for example a lost one. The balance shows `Blocked`.

    Earlier reservations can still be captured, and points can arrive. The programme says whether purchases earn.
    """
    return await command.response(events.Block, card, body.normalized())


@_changes_card("unblock", "Unblock a card")
async def unblock(card: NamedCard, body: CardChange, command: CommandOfRequest) -> Response:
    """End the block of a card. A card that is not blocked stays as it is."""
    return await command.response(events.Unblock, card, body.normalized())


@_changes_card("replacement", "Replace a card", SameCustomer, CardInUse)
async def replacement(card: NamedCard, body: Replacement, command: CommandOfRequest) -> Response:
    """Move everything from a card, for example a lost one, to a new card that has no account.

    When it is done, the account has left the old card, and its balance is 410. The new card gets points, tier,
    reservations and returnable purchases, a moment later. Late invoices of the old card follow. If the total of the new
    card would be above 10^15 points, the account goes back to the old card.
    """
    caller_of(command.request).require_card(body.new_card)
    return await command.response(events.Replace, card, body.normalized(), counterparty=body.new_card)


@_changes_card("merge", "Merge two accounts", SameCustomer)
async def merge(card: NamedCard, body: Merging, command: CommandOfRequest) -> Response:
    """Move everything from a card into the account of another card of the same customer, like a replacement."""
    caller_of(command.request).require_card(body.into)
    return await command.response(events.Merge, card, body.normalized(), counterparty=body.into)


@_route("DELETE", "/customers/{card}", Scope.CUSTOMER_ERASE, "Erase a customer", HTTPStatus.OK, takes_body=False)
async def erase(card: NamedCard, command: CommandOfRequest) -> Response:
    """Remove the points, reservations and decisions of a customer. The erasure of an unknown card succeeds, too.

    When it is done, the balance is 404. A later event of the card opens a new account. If cards were replaced or
    merged, the erasure reaches the old cards a moment later. Until then, a purchase with an old card may get no points.
    """
    return await command.response(events.Erase, card)


@router.get(
    "/commands/{command}",
    dependencies=[needs(*FOLLOWS_COMMANDS)],
    summary="The result of a command",
    response_model=Command,
    responses={
        **_ACCEPTED,
        **problems.responses(UnknownCommand, problems.InvalidParameters, TooStale, *_OWNER_PROBLEMS),
    },
)
async def command(
    request: Request, command: CommandId, commands: CommandsDep, timeout_seconds: Timeout = 0
) -> Response:
    """200 with the decision, done or refused. 202 while there is no decision or the balance does not show it.

    An erasure gets 200 as soon as it is decided. Repeat the DELETE to wait until the balance is gone.
    """
    seconds = wait_seconds(request, timeout_seconds)
    deadline = time.monotonic() + seconds
    most_seconds = min(seconds + FORWARDING_SECONDS, seconds_left(request))
    decision = await commands.decisions.find(command, seconds, most_seconds)
    if decision is None:
        raise UnknownCommand
    require_own_card(caller_of(request), decision)
    try:
        outcome = await commands.decisions.await_visibility(decision, deadline)
    except CommandErased as erased:
        raise UnknownCommand from erased
    if decision["Status"] == PENDING or not outcome.is_visible:
        return accepted_response(decision)
    return json_response(public_members(decision))
