"""What the requests for commands have in common: identity, waiting, and what OpenAPI says of their answers."""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request

from api.commands.service import Commands
from api.http import headers, problems
from api.http.parameters import LONGEST_TIMEOUT_SECONDS
from api.http.problems import Problem
from api.schemas.commands import Command
from services.commands.identity import MAX_KEY_LENGTH, command_id, request_hash
from services.domain import events

CUSTOMARY_TIMEOUT_SECONDS = 10.0

Timeout = Annotated[
    float,
    Query(
        alias="timeout",
        ge=0,
        le=LONGEST_TIMEOUT_SECONDS,
        allow_inf_nan=False,
        description="Seconds to wait for the decision, and for the balance to show it, before 202.",
    ),
]
CommandId = Annotated[str, Path(max_length=64, examples=["0b9f0e5c-7a53-5f0d-8f43-5ffb1a0c9a3e"])]


async def identity(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=MAX_KEY_LENGTH,
            pattern=r"^[ -~]+$",
            description="New for each command, the same when it is repeated. It belongs to method and path.",
            examples=["5c1d5bd8-55b4-4d2c-a9a8-0e1c8f6f7e52"],
        ),
    ] = None,
) -> str:
    """The id of the command that the request is; raises Problem without an Idempotency-Key."""
    if idempotency_key is None:
        raise problems.IdempotencyKeyMissing
    return command_id(request.method, request.scope["path"], idempotency_key)


Identity = Annotated[str, Depends(identity)]


async def the_desk(request: Request) -> Commands:
    commands: Commands = request.app.state.commands
    return commands


Desk = Annotated[Commands, Depends(the_desk)]

OF_OWNERS = (
    problems.Starting,
    problems.Restoring,
    problems.Stopping,
    problems.Rebalancing,
    problems.OwnerUnreachable,
    problems.OwnerTimeout,
    problems.NotTheOwner,
)
_OF_COMMANDS = (
    problems.IdempotencyKeyMissing,
    problems.UnreadableBody,
    problems.BodyTooLarge,
    problems.CommandInFlight,
    problems.IdempotencyKeyReused,
    problems.InvalidParameters,
    problems.KafkaUnavailable,
    problems.OwnerInDoubt,
    problems.TooManyCommands,
    *OF_OWNERS,
)
_HEADERS = {
    "Location": {"description": "Where to ask what became of the command.", "schema": {"type": "string"}},
    headers.SEQUENCE: {"description": "AccountSequence of the answer.", "schema": {"type": "string"}},
}
NOT_YET: dict[int | str, dict[str, Any]] = {
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


def responses(done: HTTPStatus, *refusals: type[Problem]) -> dict[int | str, dict[str, Any]]:
    return {
        done.value: {"description": "Done, and the next read of the balance shows it.", "headers": _HEADERS},
        **NOT_YET,
        **problems.responses(*refusals, *_OF_COMMANDS),
    }


def at_once(card: str, command: events.Command) -> Callable[[], Awaitable[tuple[str, events.Command]]]:
    async def make() -> tuple[str, events.Command]:
        return card, command

    return make


def common_fields(identity: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "append_time": 0,  # the broker's to say
        "command_id": identity,
        "request_hash": request_hash(identity, asked),
        "reason": asked.get("reason", ""),
        "actor": asked.get("actor", ""),
    }
