"""Commands: what customers and clerks do with points."""

import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Request, Response

from api.commands.requests import (
    CUSTOMARY_TIMEOUT_SECONDS,
    NOT_YET,
    OF_OWNERS,
    CommandId,
    Desk,
    Identity,
    Timeout,
    at_once,
    common_fields,
    responses,
)
from api.commands.service import Asked, Commands, accepted, shown
from api.http import pagination, problems
from api.http.parameters import Card, NotBlank
from api.schemas.commands import Adjustment, Command, Redemption, Transfer
from services.commands.log import PENDING
from services.domain import events

router = APIRouter(prefix="/v1", tags=["commands"])

NamedCard = Annotated[Card, NotBlank]
"""A blank is no customer: no account would ever take the command."""


@router.post(
    "/customers/{card}/redemptions",
    summary="Set points aside",
    response_model=Command,
    status_code=HTTPStatus.CREATED,
    responses=responses(HTTPStatus.CREATED, problems.InsufficientPoints),
)
async def reserve(
    request: Request,
    card: NamedCard,
    body: Redemption,
    identity: Identity,
    desk: Desk,
    timeout: Timeout = CUSTOMARY_TIMEOUT_SECONDS,  # noqa: ASYNC109  # the caller's
) -> Response:
    """Begin a redemption: the points cannot be spent otherwise until it is captured or void, or lapses (ExpiresTime).

    The answer's RedemptionID is what capture and void take.
    """
    asked = body.asked()
    command = events.Reserve(points=asked["points"], **common_fields(identity, asked))
    return await desk.answer(
        request, Asked(identity, command.request_hash, at_once(card, command), HTTPStatus.CREATED, card), timeout
    )


@router.post(
    "/redemptions/{redemption}/capture",
    summary="Spend what was set aside",
    response_model=Command,
    responses=responses(HTTPStatus.OK, problems.UnknownRedemption, problems.RedemptionNotOpen),
)
async def capture(
    request: Request,
    redemption: CommandId,
    identity: Identity,
    desk: Desk,
    timeout: Timeout = CUSTOMARY_TIMEOUT_SECONDS,  # noqa: ASYNC109  # the caller's
) -> Response:
    """End a redemption by taking its points; a redemption that was captured, made void or has lapsed is not open."""
    return await _end(request, redemption, events.Capture, identity, desk, timeout)


@router.post(
    "/redemptions/{redemption}/void",
    summary="Give back what was set aside",
    response_model=Command,
    responses=responses(HTTPStatus.OK, problems.UnknownRedemption, problems.RedemptionNotOpen),
)
async def void(
    request: Request,
    redemption: CommandId,
    identity: Identity,
    desk: Desk,
    timeout: Timeout = CUSTOMARY_TIMEOUT_SECONDS,  # noqa: ASYNC109  # the caller's
) -> Response:
    """End a redemption by freeing its points; those that have expired meanwhile expire now."""
    return await _end(request, redemption, events.Void, identity, desk, timeout)


async def _end(
    request: Request,
    redemption: str,
    kind: type[events.Capture | events.Void],
    identity: str,
    desk: Commands,
    seconds: float,
) -> Response:
    common = common_fields(identity, {})

    async def make() -> tuple[str, events.Command]:
        # A reserve that is being decided may be captured as soon as it is.
        begun = await desk.look_up(redemption, seconds)
        if begun is None or begun["Kind"] != "reserve":
            raise problems.UnknownRedemption
        if begun["Status"] == PENDING:
            raise problems.RedemptionPending
        return begun["CustomerCardNo"], kind(redemption_id=redemption, **common)

    return await desk.answer(request, Asked(identity, common["request_hash"], make, HTTPStatus.OK), seconds)


@router.post(
    "/customers/{card}/adjustments",
    summary="Correct the points by hand",
    response_model=Command,
    status_code=HTTPStatus.CREATED,
    responses=responses(HTTPStatus.CREATED, problems.InsufficientPoints),
)
async def adjust(
    request: Request,
    card: NamedCard,
    body: Adjustment,
    identity: Identity,
    desk: Desk,
    timeout: Timeout = CUSTOMARY_TIMEOUT_SECONDS,  # noqa: ASYNC109  # the caller's
) -> Response:
    """Add points, or take them; why and who is kept with the entry."""
    asked = body.asked()
    command = events.Adjust(
        points=asked["points"], allow_negative=asked["allow_negative"], **common_fields(identity, asked)
    )
    return await desk.answer(
        request, Asked(identity, command.request_hash, at_once(card, command), HTTPStatus.CREATED, card), timeout
    )


@router.post(
    "/transfers",
    summary="Give points to another customer",
    response_model=Command,
    status_code=HTTPStatus.CREATED,
    responses=responses(HTTPStatus.CREATED, problems.InsufficientPoints, problems.SameCustomer),
)
async def transfer(
    request: Request,
    body: Transfer,
    identity: Identity,
    desk: Desk,
    timeout: Timeout = CUSTOMARY_TIMEOUT_SECONDS,  # noqa: ASYNC109  # the caller's
) -> Response:
    """Move points that can be spent from one card to another; they expire there when they would have expired here.

    Done says that they have left the sender; the receiver gets them a moment later, for certain.
    """
    asked = body.asked()
    command = events.Transfer(points=asked["points"], counterparty=body.to_card, **common_fields(identity, asked))
    card = body.from_card
    return await desk.answer(
        request, Asked(identity, command.request_hash, at_once(card, command), HTTPStatus.CREATED, card), timeout
    )


@router.delete(
    "/customers/{card}",
    summary="Erase a customer",
    response_model=Command,
    responses=responses(HTTPStatus.OK),
)
async def erase(
    request: Request,
    card: NamedCard,
    identity: Identity,
    desk: Desk,
    timeout: Timeout = CUSTOMARY_TIMEOUT_SECONDS,  # noqa: ASYNC109  # the caller's
) -> Response:
    """Forget a customer: points, reservations, decisions. A card that nobody knows is erased just as well.

    Whatever comes for the card later opens a new account. Once done, the balance is 404.
    """
    command = events.Erase(**common_fields(identity, {}))
    return await desk.answer(
        request, Asked(identity, command.request_hash, at_once(card, command), HTTPStatus.OK, card), timeout
    )


@router.get(
    "/commands/{command}",
    summary="What became of a command",
    response_model=Command,
    responses={
        **NOT_YET,
        **problems.responses(
            problems.UnknownCommand,
            problems.InvalidParameters,
            problems.TooStale,
            *OF_OWNERS,
        ),
    },
)
async def command(
    command: CommandId,
    desk: Desk,
    timeout: Timeout = 0,  # noqa: ASYNC109  # the caller's
) -> Response:
    """200 with the decision, done or refused; 202 while there is none that the balance shows."""
    until = time.monotonic() + timeout
    found = await desk.look_up(command, timeout)
    if found is None:
        raise problems.UnknownCommand
    if found["Status"] == PENDING or not await desk.is_visible(found, until - time.monotonic()):
        return accepted(found)
    return pagination.json_response(shown(found))
