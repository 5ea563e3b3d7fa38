"""All errors of the API. Each response is application/problem+json (RFC 9457).

A class defines the status, the type, the title, the text and the example of one problem. **Its docstring is the text
that the client reads.** Routes name the classes of the problems that they can return. OpenAPI takes the examples from
the classes.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self

import orjson
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from services.state_stores.contract import StoreCorruptError, StoreError
from services.state_stores.store import NotServingError

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:problem-type:loyalty:"
"""Problem types are names and not addresses, because a deployment has no server for their documentation."""

RETRY_AFTER = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
"""The header, for OpenAPI."""

MOST_ERRORS = 100
"""Errors that a response reports. A client corrects the first ones, and asks again."""

_EXAMPLE_COMMAND = "0b9f0e5c-7a53-5f0d-8f43-5ffb1a0c9a3e"


class ProblemBody(BaseModel):
    """An error, after RFC 9457. Some types have further members."""

    model_config = ConfigDict(extra="allow", title="Problem")

    type: str = Field(description="Names the kind of problem.", examples=["urn:problem-type:loyalty:unknown-customer"])
    title: str
    status: int = Field(ge=400, le=599)
    detail: str


class Problem(Exception):  # noqa: N818 - subclasses are named after what happened
    """An error that the client can act on.

    The docstring of a subclass is its ``detail``. The docstring is a template over the members.

    Args:
        retry_after: seconds after which the client can repeat the request; None: a repetition does not help.
        location: the header Location.
        members: members of the JSON body that the RFC does not define.

    Attributes:
        code: the last part of the problem type. Programs tell problems apart by it.
        headers: further headers of the response.
        example: arguments of the occurrence that OpenAPI shows.
    """

    status: HTTPStatus
    code: str
    title: str
    detail: str
    retry_after: int | None = None
    example: Mapping[str, Any] = {}

    def __init_subclass__(cls, **declared: Any) -> None:
        cls.detail = " ".join((cls.__doc__ or "").split())
        for name, value in declared.items():
            setattr(cls, name, value)

    def __init__(
        self, *, retry_after: int | None = None, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        self.members = members
        self.headers = dict(headers or {})
        self.retry_after = retry_after or self.retry_after

    @property
    def another_may_answer(self) -> bool:
        """Whether another instance may be able to answer."""
        return self.code in ANOTHER_MAY_ANSWER

    def describe(self) -> str:
        texts = {
            name: ", ".join(map(str, value)) if isinstance(value, list) else "unknown" if value is None else value
            for name, value in self.members.items()
        }
        return self.detail.format_map(texts)

    def response(self) -> Response:
        body = {
            "type": TYPE_PREFIX + self.code,
            "title": self.title,
            "status": self.status.value,
            "detail": self.describe(),
            **self.members,
        }
        headers = self.headers if self.retry_after is None else {**self.headers, "Retry-After": str(self.retry_after)}
        return Response(orjson.dumps(body), self.status, headers, MEDIA_TYPE)


class OtherProblem(Problem):
    """A problem of the framework or of another instance. It keeps its texts."""

    def __init__(self, status: int, code: str, title: str, detail: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.status = HTTPStatus(status)
        self.code = code
        self.title = title
        self.detail = detail

    @classmethod
    def from_response(cls, content: bytes, retry_after: str | None) -> Self:
        """The problem in the response of another instance."""
        body = orjson.loads(content)
        code = body.pop("type").removeprefix(TYPE_PREFIX)
        return cls(code=code, retry_after=int(retry_after) if retry_after else None, **body)

    def describe(self) -> str:
        return self.detail


class NotFound(Problem, status=HTTPStatus.NOT_FOUND):
    """The requested object does not exist."""


class UnknownRoute(NotFound, code="unknown-route", title="No such path"):
    """There is no such path. Correct it: /openapi.json has all paths."""


class UnknownCustomer(NotFound, code="unknown-customer", title="No such customer"):
    """This card has no balance. A card gets one with its first points, for example from a PRIME invoice. Check the card
    number, or try again later.
    """


class UnknownTarget(NotFound, code="unknown-customer", title="No such customer"):
    """The other card of the request (the member into) has no balance. Check its number. To move the account to a new
    card, request a replacement.
    """


class NoLedgerEntries(NotFound, code="unknown-customer", title="No such customer"):
    """The ledger has no entry of this card. Entries appear about a second after the balance. Check the card number."""


class CardMoved(
    Problem, status=HTTPStatus.GONE, code="card-replaced", title="The card was replaced", example={"newCard": "4711"}
):
    """The account of this card has moved to another card: the card was replaced, or its account was merged. If the
    problem has the member newCard, ask for that card.
    """


class UnknownStore(
    NotFound,
    code="unknown-store",
    title="No such store",
    example={"stores": ["customer-balances", "top-customers"]},
):
    """There is no store with this name. Use one of {stores}."""


class UnknownKey(NotFound, code="unknown-key", title="No such key"):
    """The store has no entry with this key now. Check the key, or read again later."""


class UnknownCommand(NotFound, code="unknown-command", title="No such command"):
    """No command with this id was sent in the last days, or its customer is erased. Check the id."""


class UnknownDeadLetter(
    NotFound, code="unknown-dead-letter", title="No such dead letter", example={"positions": ["0:42"]}
):
    """There is no dead letter at {positions}. Nothing was published. Read the list again."""


class UnknownRedemption(NotFound, code="unknown-redemption", title="No such redemption"):
    """No redemption with this id was made in the last days. Use the RedemptionID of the response to the reservation."""


class BadRequest(Problem, status=HTTPStatus.BAD_REQUEST):
    """The client must correct the request before it repeats it."""


class UnreadableBody(
    BadRequest,
    code="unreadable-body",
    title="The body cannot be read",
    example={"reason": "it is not JSON at line 1, column 11: Expecting value"},
):
    """The body must be JSON in UTF-8 that has each member once: {reason}. Correct the body."""


class UnreadableRequest(BadRequest, code="unreadable-request", title="The request cannot be read"):
    """The request does not follow HTTP/1.1, has no header Host or two of them, or has an unknown method, or its path
    and query are not percent-encoded UTF-8, have a # or have more than 65,535 characters. Correct the request.
    """


class HeadersTooLarge(
    Problem,
    status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    code="headers-too-large",
    title="The headers are too large",
):
    """The headers of the request have more than 65,536 bytes together. Or its body has so many bytes between two parts,
    or after the last one. Send fewer or shorter headers and trailers.
    """


class RequestTimeout(
    Problem, status=HTTPStatus.REQUEST_TIMEOUT, code="request-timeout", title="The request did not arrive in time"
):
    """The request was not complete in time (LOYALTY_REQUEST_TIMEOUT). Send it again on a new connection."""


class IdempotencyKeyMissing(BadRequest, code="idempotency-key-missing", title="Idempotency-Key is missing"):
    """A command needs the header Idempotency-Key with 1 to 255 printable ASCII characters. Use a new key for each
    command, and the same key to repeat a command.
    """


class NotWindowed(
    BadRequest, code="not-windowed", title="The store has no windows", example={"store": "customer-balances"}
):
    """The store {store} has one entry for each key. Read it by /keys."""


class MethodNotAllowed(
    Problem, status=HTTPStatus.METHOD_NOT_ALLOWED, code="method-not-allowed", title="The path has no such method"
):
    """The path does not take this method. Use a method in the header Allow."""


class BodyTooLarge(
    Problem,
    status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    code="body-too-large",
    title="The body is too large",
    example={"limit": 2**20},
):
    """This path accepts up to {limit} bytes. Send a smaller body."""


class NotJson(
    Problem, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE, code="not-json", title="The body is not declared as JSON"
):
    """The body is not declared as JSON. Send the body as JSON, with the header Content-Type: application/json."""


BODY_PROBLEMS = (UnreadableBody, NotJson, BodyTooLarge)
"""The problems of a body before its members are checked."""


class Unprocessable(Problem, status=HTTPStatus.UNPROCESSABLE_ENTITY):
    """The values of the request are not allowed."""


class InvalidParameters(
    Unprocessable,
    code="invalid-parameters",
    title="Invalid parameters",
    example={"errors": [{"in": ["query", "minSequence"], "reason": "must be a whole number, for example 42"}]},
):
    """Each error has the members ``in``, which is the path to the value, and ``reason``."""

    @classmethod
    def in_query(cls, parameter: str, reason: str) -> Self:
        return cls(errors=[{"in": ["query", parameter], "reason": reason}])

    def describe(self) -> str:
        errors = self.members["errors"]
        return "; ".join(f"{'.'.join(each['in'][1:]) or each['in'][0]}: {each['reason']}" for each in errors)


class InvalidProgramme(
    Unprocessable,
    code="invalid-programme",
    title="The programme is not valid",
    example={"problems": [{"line": 3, "path": "tiers", "message": "should be a list"}], "reason": "line 3, tiers"},
):
    """Correct the file, or the time: {reason}"""


class IdempotencyKeyReused(
    Unprocessable, code="idempotency-key-reused", title="The Idempotency-Key belongs to another request"
):
    """A command with the same key and another body was sent to this path before. Use a new key for a new command."""


class Misdirected(Problem, status=HTTPStatus.MISDIRECTED_REQUEST):
    """Another instance holds the partition."""


class NotHere(Misdirected, code="not-here", title="The partition is on another instance", example={"partition": 2}):
    """This instance does not hold partition {partition}. Use the path without /local: it finds the right instance."""


class NotTheOwner(Misdirected, code="not-the-owner", title="The partition has moved", example={"partition": 2}):
    """A peer sent this request to the owner of partition {partition}, and this instance is not the owner. Find the
    owner again.
    """


class Conflict(Problem, status=HTTPStatus.CONFLICT):
    """The state of the customer or of an earlier command does not allow the request."""


class CommandInFlight(
    Conflict,
    code="command-in-flight",
    title="The command is in progress",
    example={"retry_after": 1, "headers": {"Location": f"/v1/commands/{_EXAMPLE_COMMAND}"}},
):
    """The command was sent and has no decision yet. Repeat the request later with the same Idempotency-Key: the command
    is executed once. If the response has a Location, you can also read the state of the command there.
    """


class RedemptionPending(Conflict, code="redemption-pending", title="The redemption is not decided yet", retry_after=1):
    """The reservation has no decision yet, and can still be refused. Nothing was changed. Repeat the request later."""


class CommandErased(Conflict, code="command-erased", title="The customer of the command was erased"):
    """The command was decided before the customer was erased. It does not run again. A new command needs a new key."""


class CommandRefused(Conflict, title="The command was refused"):
    """The programme does not allow this command. Reason has the code."""

    def __init_subclass__(cls, **declared: Any) -> None:
        command = {"CommandID": _EXAMPLE_COMMAND, "Status": "refused", "Kind": "reserve"}
        example = {**command, "Reason": declared["code"], "AvailableLoyaltyPoints": "9.98", "AccountSequence": 12}
        super().__init_subclass__(**declared, example=example)

    @staticmethod
    def from_decision(decision: Mapping[str, Any]) -> "CommandRefused":
        """The problem of a decision that refuses a command. The reason of the decision is the code of the problem."""
        # Programs log errors, so no error may contain a card.
        members = {name: value for name, value in decision.items() if value is not None and name != "CustomerCardNo"}
        refusal = _REFUSALS.get(decision["Reason"], CommandRefused)(**members)
        refusal.code = decision["Reason"]
        refusal.headers = {"Location": f"/v1/commands/{decision['CommandID']}"}
        return refusal


class InsufficientPoints(CommandRefused, code="insufficient-points", title="Not enough points"):
    """The command needs more points than the customer can spend now. Use at most AvailableLoyaltyPoints."""


class RedemptionNotOpen(CommandRefused, code="unknown-redemption", title="The redemption is not open"):
    """The redemption was captured or voided before, or it has lapsed. Start a new redemption."""


class TooManyPoints(CommandRefused, code="too-many-points", title="Too many points"):
    """The total of the customer would be outside of the permitted range. Use a smaller adjustment."""


class SameCustomer(CommandRefused, code="same-customer", title="Both cards are the same"):
    """The command needs two different cards. Correct one of them."""


class CardBlocked(CommandRefused, code="card-blocked", title="The card is blocked"):
    """Points of a blocked card cannot be redeemed or transferred. The helpdesk can unblock it."""


class CardReplaced(CommandRefused, code="card-replaced", title="The card was replaced"):
    """The account has moved to another card. Send the command for the new card. The balance of the old one names it."""


class TargetReplaced(CardReplaced, code="card-replaced", title="The card was replaced"):
    """The other card of the request was replaced, so its account now belongs to newCard. A replaced card cannot get an
    account again. Use another card.
    """


class CardInUse(Conflict, code="card-in-use", title="The new card has an account"):
    """The new card has an account already. Take another card, or merge the accounts."""


_REFUSALS = {
    each.code: each
    for each in (CardBlocked, CardReplaced, InsufficientPoints, RedemptionNotOpen, SameCustomer, TooManyPoints)
}


class Unavailable(Problem, status=HTTPStatus.SERVICE_UNAVAILABLE, retry_after=1):
    """A temporary state. The client can repeat the request."""


class Starting(Unavailable, code="starting", title="The instance is starting", example={"partition": 2}):
    """This instance has not opened partition {partition} yet. Repeat the request later. /readyz shows the progress."""


class Restoring(
    Unavailable,
    code="restoring",
    title="The store is being restored",
    example={"partition": 2, "restoredShare": 0.4},
):
    """This instance restores partition {partition} from its changelog, and serves it only after that. Repeat the
    request later.
    """


class Stopping(Unavailable, code="stopping", title="The store is closed"):
    """This instance stops, or the partition has moved to another one. Repeat the request."""


class Rebalancing(Unavailable, code="rebalancing", title="The partition has no owner now", example={"partition": 2}):
    """No instance can confirm now that it owns partition {partition}: the partition moves to another instance, or Kafka
    does not respond. Repeat the request later.
    """


class TooStale(Unavailable, code="too-stale", title="No copy is fresh enough", example={"maxLag": 0, "lag": 7}):
    """The owner does not respond, and no copy is within maxLag. The lag of the best copy, in records, is {lag}. maxLag
    is {maxLag}. Repeat the request later, or with a larger maxLag.
    """


class SequenceNotReached(
    Unavailable,
    code="sequence-not-reached",
    title="The required sequence is not there yet",
    example={"minSequence": 7, "currentSequence": 6},
):
    """Sequence number {minSequence} did not arrive within the timeout. The key has {currentSequence} (0: there is no
    entry). If the request has an openedTime, only sequence numbers of the account with this openedTime count. Repeat
    the request later, or with a longer timeout.
    """


class OwnerInDoubt(
    Unavailable,
    code="owner-in-doubt",
    title="The owner cannot see all earlier commands",
    example={"partition": 2},
):
    """The owner of partition {partition} has no recent contact with Kafka, or has not read all records. The command was
    not sent. Repeat the request later.
    """


class KafkaUnavailable(Unavailable, code="kafka-unavailable", title="Kafka is unavailable"):
    """Kafka did not confirm the command. Repeat the request with the same Idempotency-Key: the command is executed
    once.
    """


class CommandNotVisible(Unavailable, code="command-not-visible", title="The command is not visible yet"):
    """The command was sent, and this instance does not show it yet. Repeat the request with the same Idempotency-Key:
    the command is executed once.
    """


class BrokerUnavailable(
    Unavailable,
    code="broker-unavailable",
    title="Kafka does not answer",
    retry_after=5,
    example={"reason": "no Kafka broker answers at 127.0.0.1:9092"},
):
    """The operation needs Kafka: {reason}. Repeat the request later."""


class TooManyConnections(Unavailable, code="too-many-connections", title="Too many connections"):
    """This instance has reached its limit of open connections (LOYALTY_MOST_CONNECTIONS). Close connections that you do
    not use, and repeat the request later.
    """


class TooManyCommands(Unavailable, code="too-many-commands", title="Too many commands at the same time"):
    """This instance has reached its limit of commands that wait for a decision. It did not send this command. Repeat
    the request later.
    """


class LedgerUnavailable(Unavailable, code="ledger-unavailable", title="The ledger is unavailable", retry_after=5):
    """The API cannot reach the database of the ledger, or no ledger process has created it. Repeat the request later.
    Balances do not need the ledger.
    """


class ProgrammeUnreadable(
    Unavailable,
    code="programme-unreadable",
    title="The programme cannot be read",
    retry_after=60,
    example={"version": 4},
):
    """This instance does not understand version {version} of the programme. Ask the operator to upgrade it."""


class NotReady(
    Unavailable,
    code="not-ready",
    title="The instance is not ready",
    example={"ready": False, "kafkaError": None, "partitions": []},
):
    """The instance restores its stores after the start, or a damaged global store. Wait, or read kafkaError."""


class NotAlive(
    Problem, status=HTTPStatus.SERVICE_UNAVAILABLE, code="not-alive", title="The instance must be restarted"
):
    """The materialiser thread has ended or hangs. The log has the reason. Restart the instance."""


class OwnerUnreachable(
    Problem,
    status=HTTPStatus.BAD_GATEWAY,
    code="owner-unreachable",
    title="No instance with the partition responds",
    retry_after=1,
    example={"partition": 2, "tried": ["http://10.0.0.7:8080"]},
):
    """No instance with partition {partition} accepted the request: {tried}. Repeat the request later."""


class OwnerTimeout(OwnerUnreachable, status=HTTPStatus.GATEWAY_TIMEOUT, code="owner-timeout"):
    """The instances with partition {partition} did not respond in time: {tried}. Repeat the request later."""


class InternalError(
    Problem,
    status=HTTPStatus.INTERNAL_SERVER_ERROR,
    code="internal-error",
    title=HTTPStatus.INTERNAL_SERVER_ERROR.phrase,
):
    """The request failed because of a defect. The log of the server has the cause. Report it to the operator."""


ANOTHER_MAY_ANSWER = frozenset(
    each.code for each in (NotTheOwner, Starting, Restoring, Stopping, TooStale, TooManyConnections)
)
"""Codes of the problems for which another instance may have an answer."""


def from_store_error(error: NotServingError | StoreError, partition: int) -> Problem:
    """The problem of a read that the local copy of a partition cannot serve."""
    if isinstance(error, StoreError):
        damaged = isinstance(error, StoreCorruptError)
        return Restoring(partition=partition, restoredShare=0.0) if damaged else Stopping()
    if error.task is None:
        return Starting(partition=partition)
    return Restoring(partition=partition, restoredShare=round(error.task.progress.restored_share, 4))


def responses(*kinds: type[Problem]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for these problems, with an example of each."""
    described: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        response = described.setdefault(
            kind.status.value,
            {
                "description": kind.status.phrase,
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}},
            },
        )
        problem = kind(**kind.example)
        example = {"summary": kind.title, "value": orjson.loads(problem.response().body)}
        response["content"][MEDIA_TYPE]["examples"][kind.code] = example
        if problem.retry_after is not None:
            response["headers"] = {"Retry-After": RETRY_AFTER}
    return described
