"""Why a command is not done, or not yet, as problems."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from api.http.problems import ProblemError


def owner_in_doubt(partition: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "owner-in-doubt",
        "Nobody can say for certain what was asked before",
        f"The owner of partition {partition} has not heard from Kafka lately, or is still catching up; "
        "commands wait until it has.",
        retry_after=1,
        extensions={"partition": partition},
    )


def kafka_unavailable(retry_after: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "kafka-unavailable",
        "Kafka does not take the command",
        "Nothing is known to have been done. The same request with the same Idempotency-Key can be repeated safely.",
        retry_after=retry_after,
    )


def too_many_commands() -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too-many-commands",
        "The instance has enough to do",
        "As many commands as an instance works on at once are waiting for their decisions; this one was not sent.",
        retry_after=1,
    )


def idempotency_key_missing() -> ProblemError:
    return ProblemError(
        HTTPStatus.BAD_REQUEST,
        "idempotency-key-missing",
        "Idempotency-Key is missing",
        "A command needs the header Idempotency-Key, 1 to 255 printable ASCII characters, new for each command and "
        "the same when it is repeated.",
    )


def idempotency_key_reused() -> ProblemError:
    return ProblemError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "idempotency-key-reused",
        "The Idempotency-Key belongs to another request",
        "A command was given to this path under the same key with another body; a new command needs a new key.",
    )


def command_in_flight(address: str, retry_after: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.CONFLICT,
        "command-in-flight",
        "The command is being worked on",
        "The same command was given before and is not decided; Location tells what becomes of it.",
        retry_after=retry_after,
        headers={"Location": address},
    )


def refused(decision: Mapping[str, Any]) -> ProblemError:
    """The refusal of a command; its code is the type."""
    code = decision["Reason"]
    title, detail = _REFUSALS.get(code, ("The command was refused", "The programme does not allow it."))
    return ProblemError(
        HTTPStatus.CONFLICT,
        code,
        title,
        detail,
        headers={"Location": f"/v1/commands/{decision['CommandID']}"},
        extensions={name: value for name, value in decision.items() if value is not None},
    )


_REFUSALS = {
    "insufficient-points": (
        "Not enough points",
        "The customer can spend fewer points now than the command takes; AvailableLoyaltyPoints says how many.",
    ),
    "unknown-redemption": (
        "The redemption is not open",
        "It was captured, made void or has lapsed before.",
    ),
    "same-customer": ("Both cards are the same", "Points cannot be transferred to the card that they come from."),
}


def unknown_redemption() -> ProblemError:
    return ProblemError(
        HTTPStatus.NOT_FOUND,
        "unknown-redemption",
        "No such redemption",
        "No redemption of this id has been made in the last days.",
    )


def redemption_pending() -> ProblemError:
    return ProblemError(
        HTTPStatus.CONFLICT,
        "redemption-pending",
        "The redemption is not decided yet",
        "The points have not been set aside yet, and may be refused; nothing was sent, ask again.",
        retry_after=1,
    )


def unknown_command() -> ProblemError:
    return ProblemError(
        HTTPStatus.NOT_FOUND,
        "unknown-command",
        "No such command",
        "No command of this id has been given in the last days, or its customer is erased.",
    )
