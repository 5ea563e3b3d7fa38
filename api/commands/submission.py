"""A request with a command: how its parameters become a command, and how the outcome becomes a response."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Header, Request, Response

from api.commands.decisions import Decision, location_of
from api.commands.problems import CommandRefused, IdempotencyKeyMissing
from api.commands.service import CommandService
from api.dependencies import CommandsDep
from api.http.parameters import timeout_query
from api.http.problems import InvalidParameters
from api.http.responses import SEQUENCE, json_response
from api.routing.peer_messages import PeerResponse
from api.schemas.fields import must_match
from api.security.caller import Caller
from api.security.permissions import caller_of
from services.codecs.records import DONE, PENDING
from services.commands.identity import MAX_KEY_LENGTH, command_id, request_hash, without_actor
from services.domain import events

_DEFAULT_TIMEOUT_SECONDS = 10.0

Timeout = Annotated[
    float, timeout_query("Seconds to wait for the decision, and for the balance to show it, before 202.")
]


class Submission(NamedTuple):
    """A request with a command.

    Attributes:
        seconds: how long to wait for the decision, and for the balance to show it.
    """

    request: Request
    commands: CommandService
    command_id: str
    seconds: float

    async def response(
        self, kind: type[events.Command], card: str | None, fields: Mapping[str, Any] | None = None, **own: Any
    ) -> Response:
        """Submit the command and wait for its decision. Raises CommandRefused for a refusal.

        Args:
            card: the customer. None for a command that ends a redemption.
            fields: the normalized body of the request, if it has one.
            own: the fields of this kind of command.
        """
        fields, caller = fields or {}, caller_of(self.request)
        if card is not None:
            caller.require_card(card)
        # If credentials prove the actor, the actor of the body does not count. A caller can repeat the command with
        # another API key. Release 0.1 knows no credentials, so its hash always has the actor of the body.
        hashed = without_actor(fields) if caller.name and self.commands.is_keyed else fields
        command = kind(
            append_time=0,  # Kafka sets it.
            command_id=self.command_id,
            request_hash=request_hash(self.command_id, hashed),
            reason=fields.get("reason", ""),
            actor=caller.name or fields.get("actor", ""),
            **own,
        )
        outcome = await self.commands.submit(self.request, command, fields, card, self.seconds)
        if isinstance(outcome, PeerResponse):
            return outcome.response()
        decision = outcome.decision
        require_own_card(caller, decision)
        if decision["Status"] not in (PENDING, DONE):
            raise CommandRefused.from_decision(public_members(decision))
        if decision["Status"] == PENDING or not outcome.is_visible:
            return accepted_response(decision)
        headers = {"Location": location_of(decision["CommandID"])}
        if decision["AccountSequence"]:
            headers[SEQUENCE] = str(decision["AccountSequence"])
        return json_response(public_members(decision), self.request.scope["route"].status_code, headers=headers)


async def submission_of_request(
    request: Request,
    commands: CommandsDep,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=MAX_KEY_LENGTH,
            pattern=r"^[ -~]+$",
            description="Use a new key for each command, and the same key to repeat a command. It belongs to method "
            "and path.",
            examples=["5c1d5bd8-55b4-4d2c-a9a8-0e1c8f6f7e52"],
        ),
        must_match(r"[ -~]*", "must have printable ASCII characters only"),
    ] = None,
    timeout_seconds: Timeout = _DEFAULT_TIMEOUT_SECONDS,
) -> Submission:
    """The command of the request. Raises IdempotencyKeyMissing, and InvalidParameters for two keys."""
    if idempotency_key is None:
        raise IdempotencyKeyMissing
    if len(request.headers.getlist("idempotency-key")) > 1:
        # A proxy may send them in another order at a repetition. Then the command would be executed a second time.
        raise InvalidParameters(errors=[{"in": ["header", "idempotency-key"], "reason": "is given twice"}])
    identity = command_id(request.method, request.scope["path"], idempotency_key)
    request.scope["audit_details"] = {"command": identity}
    return Submission(request, commands, identity, timeout_seconds)


CommandOfRequest = Annotated[Submission, Depends(submission_of_request)]


def require_own_card(caller: Caller, decision: Decision) -> None:
    """Raise NotYours for a decision about another card. A decision without a card shows no data of a customer."""
    if decision["CustomerCardNo"]:
        caller.require_card(decision["CustomerCardNo"])


def accepted_response(decision: Decision) -> Response:
    """202 for a command that is pending, or that the balance does not show yet."""
    headers = {"Location": location_of(decision["CommandID"]), "Retry-After": "1"}
    return json_response(public_members(decision), HTTPStatus.ACCEPTED, headers=headers)


def public_members(decision: Decision) -> Decision:
    """The members of a decision that clients may see."""
    members = {name: value for name, value in decision.items() if name != "RequestHash"}
    # In the record of a reservation, Points are the reserved points. They do not change the total of the customer.
    is_reservation = decision["Kind"] == "reserve" and decision["Status"] == DONE
    reserved = {"Points": "0.00", "ReservedPoints": decision["Points"]} if is_reservation else {"ReservedPoints": None}
    return members | reserved
