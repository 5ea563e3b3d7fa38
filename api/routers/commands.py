"""Commands of customers and clerks on points."""

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Request, Response

from api.commands.service import Decision, Outcome, location_of
from api.dependencies import CommandsDep
from api.http import headers, problems
from api.http.parameters import Card, timeout_query
from api.http.problems import Problem
from api.http.responses import json_response
from api.routing.peer_client import PeerResponse
from api.schemas.commands import Adjustment, Command, Redemption, Transfer
from api.schemas.fields import NotBlank
from services.commands.identity import MAX_KEY_LENGTH, command_id, request_hash
from services.commands.log import DONE, PENDING
from services.domain import events

router = APIRouter(prefix="/v1", tags=["commands"])

_DEFAULT_TIMEOUT_SECONDS = 10.0

# No account takes a command for a blank card.
NamedCard = Annotated[Card, NotBlank]
Timeout = Annotated[
    float, timeout_query("Seconds to wait for the decision, and for the balance to show it, before 202.")
]
CommandId = Annotated[str, Path(max_length=64, examples=["0b9f0e5c-7a53-5f0d-8f43-5ffb1a0c9a3e"])]


async def new_command_id(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=MAX_KEY_LENGTH,
            pattern=r"^[ -~]+$",
            description="New for each command, and the same when the command is repeated. It belongs to method and "
            "path.",
            examples=["5c1d5bd8-55b4-4d2c-a9a8-0e1c8f6f7e52"],
        ),
    ] = None,
) -> str:
    """The id of the command in the request. Raises IdempotencyKeyMissing."""
    if idempotency_key is None:
        raise problems.IdempotencyKeyMissing
    return command_id(request.method, request.scope["path"], idempotency_key)


NewCommandId = Annotated[str, Depends(new_command_id)]

_OWNER_PROBLEMS = (
    problems.Starting,
    problems.Restoring,
    problems.Stopping,
    problems.Rebalancing,
    problems.OwnerUnreachable,
    problems.OwnerTimeout,
    problems.NotTheOwner,
)
_COMMAND_PROBLEMS = (
    problems.IdempotencyKeyMissing,
    problems.UnreadableBody,
    problems.BodyTooLarge,
    problems.CommandInFlight,
    problems.IdempotencyKeyReused,
    problems.CommandErased,
    problems.InvalidParameters,
    problems.KafkaUnavailable,
    problems.OwnerInDoubt,
    problems.TooManyCommands,
    *_OWNER_PROBLEMS,
)
_HEADERS = {
    "Location": {"description": "Where to ask what became of the command.", "schema": {"type": "string"}},
    headers.SEQUENCE: {"description": "AccountSequence of the answer.", "schema": {"type": "string"}},
}
_ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": Command,
        "description": "The time is over before the command is decided, or before the balance shows it. "
        "Ask at Location, or repeat the request as it was.",
        "headers": {
            "Location": _HEADERS["Location"],
            "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}},
        },
    }
}


def _responses(done: HTTPStatus, *refusals: type[Problem]) -> dict[int | str, dict[str, Any]]:
    return {
        done.value: {"description": "Done, and the next read of the balance shows it.", "headers": _HEADERS},
        **_ACCEPTED,
        **problems.responses(*refusals, *_COMMAND_PROBLEMS),
    }


@router.post(
    "/customers/{card}/redemptions",
    summary="Set points aside",
    response_model=Command,
    status_code=HTTPStatus.CREATED,
    responses=_responses(HTTPStatus.CREATED, problems.InsufficientPoints),
)
async def reserve(
    request: Request,
    card: NamedCard,
    body: Redemption,
    identity: NewCommandId,
    commands: CommandsDep,
    timeout_seconds: Timeout = _DEFAULT_TIMEOUT_SECONDS,
) -> Response:
    """Begin a redemption: reserve points until it is captured or void, or until it lapses at ExpiresTime.

    Capture and void take the RedemptionID of the response.
    """
    fields = body.normalized()
    command = events.Reserve(points=fields["points"], **_common_fields(identity, fields))
    outcome = await commands.submit(request, command, card, timeout_seconds)
    return _response(outcome, HTTPStatus.CREATED)


@router.post(
    "/redemptions/{redemption}/capture",
    summary="Spend what was set aside",
    response_model=Command,
    responses=_responses(HTTPStatus.OK, problems.UnknownRedemption, problems.RedemptionNotOpen),
)
async def capture(
    request: Request,
    redemption: CommandId,
    identity: NewCommandId,
    commands: CommandsDep,
    timeout_seconds: Timeout = _DEFAULT_TIMEOUT_SECONDS,
) -> Response:
    """End a redemption and take its points. A redemption that was captured, made void or has lapsed is not open."""
    command = events.Capture(redemption_id=redemption, **_common_fields(identity, {}))
    return _response(await commands.submit(request, command, None, timeout_seconds), HTTPStatus.OK)


@router.post(
    "/redemptions/{redemption}/void",
    summary="Give back what was set aside",
    response_model=Command,
    responses=_responses(HTTPStatus.OK, problems.UnknownRedemption, problems.RedemptionNotOpen),
)
async def void(
    request: Request,
    redemption: CommandId,
    identity: NewCommandId,
    commands: CommandsDep,
    timeout_seconds: Timeout = _DEFAULT_TIMEOUT_SECONDS,
) -> Response:
    """End a redemption and free its points. Points that have expired meanwhile expire now."""
    command = events.Void(redemption_id=redemption, **_common_fields(identity, {}))
    return _response(await commands.submit(request, command, None, timeout_seconds), HTTPStatus.OK)


@router.post(
    "/customers/{card}/adjustments",
    summary="Correct the points by hand",
    response_model=Command,
    status_code=HTTPStatus.CREATED,
    responses=_responses(HTTPStatus.CREATED, problems.InsufficientPoints, problems.TooManyPoints),
)
async def adjust(
    request: Request,
    card: NamedCard,
    body: Adjustment,
    identity: NewCommandId,
    commands: CommandsDep,
    timeout_seconds: Timeout = _DEFAULT_TIMEOUT_SECONDS,
) -> Response:
    """Add points, or take them. The entry keeps the reason and the actor."""
    fields = body.normalized()
    command = events.Adjust(
        points=fields["points"], allow_negative=fields["allow_negative"], **_common_fields(identity, fields)
    )
    outcome = await commands.submit(request, command, card, timeout_seconds)
    return _response(outcome, HTTPStatus.CREATED)


@router.post(
    "/transfers",
    summary="Give points to another customer",
    response_model=Command,
    status_code=HTTPStatus.CREATED,
    responses=_responses(HTTPStatus.CREATED, problems.InsufficientPoints, problems.SameCustomer),
)
async def transfer(
    request: Request,
    body: Transfer,
    identity: NewCommandId,
    commands: CommandsDep,
    timeout_seconds: Timeout = _DEFAULT_TIMEOUT_SECONDS,
) -> Response:
    """Move available points from one card to another. They keep the time at which they expire.

    When the transfer is done, the points have left the sender. The receiver gets them a moment later, for certain.
    """
    fields = body.normalized()
    command = events.Transfer(points=fields["points"], counterparty=body.to_card, **_common_fields(identity, fields))
    outcome = await commands.submit(request, command, body.from_card, timeout_seconds)
    return _response(outcome, HTTPStatus.CREATED)


@router.delete(
    "/customers/{card}",
    summary="Erase a customer",
    response_model=Command,
    responses=_responses(HTTPStatus.OK),
)
async def erase(
    request: Request,
    card: NamedCard,
    identity: NewCommandId,
    commands: CommandsDep,
    timeout_seconds: Timeout = _DEFAULT_TIMEOUT_SECONDS,
) -> Response:
    """Forget a customer: points, reservations, decisions. The erasure of an unknown card succeeds as well.

    Once it is done, the balance is 404. A later event of the card opens a new account.
    """
    command = events.Erase(**_common_fields(identity, {}))
    return _response(await commands.submit(request, command, card, timeout_seconds), HTTPStatus.OK)


@router.get(
    "/commands/{command}",
    summary="What became of a command",
    response_model=Command,
    responses={
        **_ACCEPTED,
        **problems.responses(problems.UnknownCommand, problems.InvalidParameters, problems.TooStale, *_OWNER_PROBLEMS),
    },
)
async def command(command: CommandId, commands: CommandsDep, timeout_seconds: Timeout = 0) -> Response:
    """200 with the decision, done or refused. 202 while there is no decision or the balance does not show it."""
    deadline = time.monotonic() + timeout_seconds
    decision = await commands.find(command, timeout_seconds)
    if decision is None:
        raise problems.UnknownCommand
    outcome = await commands.await_visibility(decision, deadline)
    if decision["Status"] == PENDING or not outcome.is_visible:
        return _accepted(decision)
    return json_response(_public(decision))


def _common_fields(identity: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "append_time": 0,  # Kafka sets it.
        "command_id": identity,
        "request_hash": request_hash(identity, fields),
        "reason": fields.get("reason", ""),
        "actor": fields.get("actor", ""),
    }


def _response(outcome: Outcome | PeerResponse, done: HTTPStatus) -> Response:
    """The response of the owner. Raises CommandRefused."""
    if isinstance(outcome, PeerResponse):
        return Response(*outcome)
    decision = outcome.decision
    if decision["Status"] not in (PENDING, DONE):
        raise problems.CommandRefused.from_decision(_public(decision))
    if decision["Status"] == PENDING or not outcome.is_visible:
        return _accepted(decision)
    own_headers = {"Location": location_of(decision["CommandID"])}
    if decision["AccountSequence"]:
        own_headers[headers.SEQUENCE] = str(decision["AccountSequence"])
    return json_response(_public(decision), done, headers=own_headers)


def _accepted(decision: Decision) -> Response:
    """202 for a command that is pending, or that the balance does not show yet."""
    own_headers = {"Location": location_of(decision["CommandID"]), "Retry-After": "1"}
    return json_response(_public(decision), HTTPStatus.ACCEPTED, headers=own_headers)


def _public(decision: Decision) -> Decision:
    """The members of a decision that clients see."""
    return {name: value for name, value in decision.items() if name != "RequestHash"}
