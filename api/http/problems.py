"""All errors of the API. Each one is answered as application/problem+json (RFC 9457).

A class owns the code, the status, the texts, the members and the example of one problem. Routes name the classes of the
problems that they can answer with. OpenAPI takes the examples from the classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Self

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException

from services.state_stores.contract import StoreCorruptError, StoreError
from services.state_stores.store import NotServingError

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:problem-type:loyalty:"
"""Problem types are names and not addresses, because a deployment has no server for their documentation."""

_HEADER_FIELDS = frozenset({"retry_after", "location"})


class ProblemBody(BaseModel):
    """An error, after RFC 9457. Some types have further members."""

    model_config = ConfigDict(extra="allow", title="Problem")

    type: str = Field(description="Names the kind of problem.", examples=["urn:problem-type:loyalty:unknown-customer"])
    title: str
    status: int = Field(ge=400, le=599)
    detail: str


class Problem(Exception):  # noqa: N818 - subclasses are named after what happened
    """An error that the client can act on.

    A subclass is a dataclass if its occurrences differ. Its fields become members of the JSON body, in camel case.

    Attributes:
        code: the last part of the problem type. Programs tell problems apart by it.
        detail: a template over the fields.
        retry_after: seconds after which the client can repeat the request; None: a repetition does not help.
        location: the header Location.
        headers: further headers of the response.
        example: arguments of the occurrence that OpenAPI shows.
    """

    status: HTTPStatus
    code: str
    title: str
    detail: str
    retry_after: int | None = None
    location: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    example: tuple[Any, ...] = ()

    def __init_subclass__(cls, **declared: Any) -> None:
        for name, value in declared.items():
            setattr(cls, name, value)

    @classmethod
    def from_example(cls) -> Self:
        return cls(*cls.example)

    @property
    def another_may_answer(self) -> bool:
        """Whether another instance may have an answer."""
        return self.code in ANOTHER_MAY_ANSWER

    @property
    def members(self) -> Mapping[str, Any]:
        """The members of the JSON body that the RFC does not define."""
        names = getattr(self, "__dataclass_fields__", {})
        return {to_camel(name): getattr(self, name) for name in names if name not in _HEADER_FIELDS}

    def describe(self) -> str:
        return self.detail.format(**vars(self))

    def body(self) -> dict[str, Any]:
        return {
            "type": TYPE_PREFIX + self.code,
            "title": self.title,
            "status": self.status.value,
            "detail": self.describe(),
            **self.members,
        }

    def response(self) -> Response:
        headers = dict(self.headers)
        if self.location is not None:
            headers["Location"] = self.location
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return Response(orjson.dumps(self.body()), self.status, headers, MEDIA_TYPE)


class OtherProblem(Problem):
    """A problem of the framework or of another instance, with the texts that it came with."""

    def __init__(self, status: int, code: str, title: str, detail: str) -> None:
        self.status = HTTPStatus(status)
        self.code = code
        self.title = title
        self.detail = detail
        self.received_members: Mapping[str, Any] = {}

    @classmethod
    def from_response(cls, content: bytes, retry_after: str | None) -> Self:
        """The problem in the response of another instance."""
        body = orjson.loads(content)
        kind = body.pop("type").removeprefix(TYPE_PREFIX)
        problem = cls(body.pop("status"), kind, body.pop("title"), body.pop("detail"))
        problem.received_members = body
        if retry_after:
            problem.retry_after = int(retry_after)
        return problem

    @property
    def members(self) -> Mapping[str, Any]:
        return self.received_members

    def describe(self) -> str:
        return self.detail


class NotFound(Problem, status=HTTPStatus.NOT_FOUND):
    """The requested object does not exist."""


class UnknownCustomer(
    NotFound,
    code="unknown-customer",
    title="No such customer",
    detail="This card has no balance. A card gets one with its first PRIME invoice. Check the card number, or "
    "try again later.",
):
    """A read of the balance of a card that has none."""


class NoLedgerEntries(
    NotFound,
    code="unknown-customer",
    title="No such customer",
    detail="The ledger has no entry of this card. Entries appear about a second after the balance. Check the "
    "card number.",
):
    """A read of the statement of a card that has no entries."""


@dataclass(eq=False)
class UnknownStore(
    NotFound, code="unknown-store", title="No such store", example=(("customer-balances", "top-customers"),)
):
    stores: Sequence[str]

    def describe(self) -> str:
        return f"There is no store with this name. Use one of {', '.join(self.stores)}."


class UnknownKey(
    NotFound,
    code="unknown-key",
    title="No such key",
    detail="The store has no entry with this key now. Check the key, or read again later.",
):
    """A read of a key that the store does not have."""


class UnknownCommand(
    NotFound,
    code="unknown-command",
    title="No such command",
    detail="No command with this id was sent in the last days, or its customer is erased. Check the id.",
):
    """A read of a command that was never sent or is forgotten."""


class UnknownRedemption(
    NotFound,
    code="unknown-redemption",
    title="No such redemption",
    detail="No redemption with this id was made in the last days. Use the RedemptionID of the response to the "
    "reservation.",
):
    """A capture or a void of a redemption that was never made or is forgotten."""


class BadRequest(Problem, status=HTTPStatus.BAD_REQUEST):
    """The client must correct the request before it repeats it."""


class UnreadableBody(
    BadRequest, code="unreadable-body", title="Bad Request", detail="There was an error parsing the body"
):
    """The body is not valid JSON."""


class IdempotencyKeyMissing(
    BadRequest,
    code="idempotency-key-missing",
    title="Idempotency-Key is missing",
    detail="A command needs the header Idempotency-Key with 1 to 255 printable ASCII characters. Use a new key "
    "for each command, and the same key to repeat a command.",
):
    """A command without a valid Idempotency-Key."""


class NotWindowed(BadRequest, code="not-windowed", title="The store has no windows", example=("customer-balances",)):
    def __init__(self, store: str) -> None:
        self.detail = f"The store {store} has one entry for each key. Read it by /keys."


@dataclass(eq=False)
class BodyTooLarge(
    Problem,
    status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    code="body-too-large",
    title="The body is too large",
    detail="This path accepts up to {limit} bytes. Send a smaller body.",
    example=(2**20,),
):
    limit: int


class Unprocessable(Problem, status=HTTPStatus.UNPROCESSABLE_ENTITY):
    """The values of the request are not allowed."""


@dataclass(eq=False)
class InvalidParameters(
    Unprocessable,
    code="invalid-parameters",
    title="Invalid parameters",
    example=([{"in": ["query", "minSequence"], "reason": "Input should be an integer"}],),
):
    """Each error has the members ``in``, which is the path to the value, and ``reason``."""

    errors: Sequence[Mapping[str, Any]]

    @classmethod
    def in_query(cls, parameter: str, reason: str) -> Self:
        return cls([{"in": ["query", parameter], "reason": reason}])

    def describe(self) -> str:
        return "; ".join(f"{each['in'][-1]}: {each['reason']}" for each in self.errors)


class IdempotencyKeyReused(
    Unprocessable,
    code="idempotency-key-reused",
    title="The Idempotency-Key belongs to another request",
    detail="A command with the same key and another body was sent to this path before. Use a new key for a new "
    "command.",
):
    """A different request with the key of an earlier command."""


class Misdirected(Problem, status=HTTPStatus.MISDIRECTED_REQUEST):
    """Another instance holds the partition."""


@dataclass(eq=False)
class NotHere(
    Misdirected,
    code="not-here",
    title="The partition is on another instance",
    detail="This instance does not hold partition {partition}. Use the path without /local: it finds the right "
    "instance.",
    example=(2,),
):
    partition: int


@dataclass(eq=False)
class NotTheOwner(
    Misdirected,
    code="not-the-owner",
    title="The partition has moved",
    detail="A peer sent this request to the owner of partition {partition}, and this instance is not the owner. "
    "Find the owner again.",
    example=(2,),
):
    partition: int


class Conflict(Problem, status=HTTPStatus.CONFLICT):
    """The state of the customer or of an earlier command does not allow the request."""


@dataclass(eq=False)
class CommandInFlight(
    Conflict,
    code="command-in-flight",
    title="The command is in progress",
    detail="The same command was sent before and has no decision yet. Read its state at Location, or repeat the "
    "request later.",
    example=("/v1/commands/0b9f0e5c-7a53-5f0d-8f43-5ffb1a0c9a3e", 1),
):
    location: str
    retry_after: int


class RedemptionPending(
    Conflict,
    code="redemption-pending",
    title="The redemption is not decided yet",
    detail="The reservation has no decision yet, and can still be refused. Nothing was changed. Repeat the "
    "request later.",
    retry_after=1,
):
    """A capture or a void of a reservation without a decision."""


class CommandErased(
    Conflict,
    code="command-erased",
    title="The customer of the command was erased",
    detail="The command was decided before the customer was erased. It does not run again. A new one needs a new key.",
):
    """A retry of a command of an erased customer."""


class CommandRefused(
    Conflict,
    title="The command was refused",
    detail="The programme does not allow this command. Reason has the code.",
):
    """A decision that refuses a command. The reason of the decision is the code of the problem."""

    def __init__(self, decision: Mapping[str, Any]) -> None:
        self.code = decision["Reason"]
        self.location = f"/v1/commands/{decision['CommandID']}"
        self.decision = decision

    @staticmethod
    def from_decision(decision: Mapping[str, Any]) -> "CommandRefused":
        return _REFUSALS.get(decision["Reason"], CommandRefused)(decision)

    @classmethod
    def from_example(cls) -> Self:
        return cls(
            {
                "CommandID": "0b9f0e5c-7a53-5f0d-8f43-5ffb1a0c9a3e",
                "Status": "refused",
                "Kind": "reserve",
                "Reason": cls.code,
                "AvailableLoyaltyPoints": "9.98",
                "AccountSequence": 12,
            }
        )

    @property
    def members(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.decision.items() if value is not None}


class InsufficientPoints(
    CommandRefused,
    code="insufficient-points",
    title="Not enough points",
    detail="The command needs more points than the customer can spend now. Use at most AvailableLoyaltyPoints.",
):
    """A command that needs more points than are available."""


class RedemptionNotOpen(
    CommandRefused,
    code="unknown-redemption",
    title="The redemption is not open",
    detail="The redemption was captured or voided before, or it has lapsed. Start a new redemption.",
):
    """A capture or a void of a redemption that has ended."""


class TooManyPoints(
    CommandRefused,
    code="too-many-points",
    title="Too many points",
    detail="The total of the customer would be outside of the permitted range.",
):
    """A command that would move a total beyond its limits."""


class SameCustomer(
    CommandRefused,
    code="same-customer",
    title="Both cards are the same",
    detail="A transfer needs two different cards. Correct from or to.",
):
    """A transfer from a card to itself."""


_REFUSALS = {each.code: each for each in (InsufficientPoints, RedemptionNotOpen, SameCustomer, TooManyPoints)}


class Unavailable(Problem, status=HTTPStatus.SERVICE_UNAVAILABLE, retry_after=1):
    """A temporary state. The client can repeat the request."""


@dataclass(eq=False)
class Starting(
    Unavailable,
    code="starting",
    title="The instance is starting",
    detail="This instance has not opened partition {partition} yet. Repeat the request later. /readyz shows the "
    "progress.",
    example=(2,),
):
    partition: int


@dataclass(eq=False)
class Restoring(
    Unavailable,
    code="restoring",
    title="The store is being restored",
    detail="This instance still reads partition {partition} from its changelog and does not serve it before the "
    "end. Repeat the request later.",
    example=(2, 0.4),
):
    partition: int
    restored_share: float

    def __post_init__(self) -> None:
        self.restored_share = round(self.restored_share, 4)


class Stopping(
    Unavailable,
    code="stopping",
    title="The store is closed",
    detail="This instance stops, or the partition has moved to another one. Repeat the request.",
):
    """A read of a store partition that this instance has closed."""


@dataclass(eq=False)
class Rebalancing(
    Unavailable,
    code="rebalancing",
    title="The partition moves",
    detail="The group assigns partition {partition} to an instance, and no instance has a copy of it yet. Repeat"
    " the request later.",
    example=(2,),
):
    partition: int


@dataclass(eq=False)
class TooStale(Unavailable, code="too-stale", title="No copy is fresh enough", example=(0, 7)):
    max_lag: int
    lag: int | None

    def describe(self) -> str:
        lag = "has an unknown lag" if self.lag is None else f"lags {self.lag} records"
        return (
            f"The owner does not respond, and the best copy {lag}. maxLag is {self.max_lag}. Repeat the request later, "
            "or with a larger maxLag."
        )


@dataclass(eq=False)
class SequenceNotReached(
    Unavailable,
    code="sequence-not-reached",
    title="The required sequence is not there yet",
    detail="The sequence of the key is {current_sequence} (0: there is no entry). It did not reach "
    "{min_sequence} within the timeout. Repeat the request later, or with a longer timeout.",
    example=(7, 6),
):
    min_sequence: int
    current_sequence: int


@dataclass(eq=False)
class OwnerInDoubt(
    Unavailable,
    code="owner-in-doubt",
    title="The owner cannot see all earlier commands",
    detail="The owner of partition {partition} has no recent contact with Kafka, or has not read all records. "
    "The command was not sent. Repeat the request later.",
    example=(2,),
):
    partition: int


@dataclass(eq=False)
class KafkaUnavailable(
    Unavailable,
    code="kafka-unavailable",
    title="Kafka is unavailable",
    detail="Kafka did not confirm the command. Repeat the request with the same Idempotency-Key: the command is "
    "executed once.",
    example=(1,),
):
    retry_after: int


class TooManyCommands(
    Unavailable,
    code="too-many-commands",
    title="Too many commands at the same time",
    detail="This instance waits for the decisions of as many commands as it accepts. This command was not sent. "
    "Repeat the request later.",
):
    """More commands at one time than the instance accepts."""


class LedgerUnavailable(
    Unavailable,
    code="ledger-unavailable",
    title="The ledger is unavailable",
    detail="The API cannot reach the database of the ledger, or no ledger process has created it. Repeat the "
    "request later. Balances do not need the ledger.",
    retry_after=5,
):
    """A read of the ledger without its database."""


@dataclass(eq=False)
class ProgrammeUnreadable(
    Unavailable,
    code="programme-unreadable",
    title="The programme cannot be read",
    detail="This instance does not understand version {version} of the programme. Ask the operator to upgrade "
    "the instance.",
    retry_after=60,
    example=(4,),
):
    version: int


@dataclass(eq=False)
class NotReady(
    Unavailable,
    code="not-ready",
    title="The instance is not ready",
    detail="Not every partition has reached the end that its changelog had at the start. Wait, or read kafkaError.",
    example=({"ready": False, "kafkaError": None, "partitions": []},),
):
    report: Mapping[str, Any]

    @property
    def members(self) -> Mapping[str, Any]:
        return self.report


class NotAlive(
    Problem,
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    code="not-alive",
    title="The instance must be restarted",
    detail="The materialiser thread has ended or hangs. The log has the reason. Restart the instance.",
):
    """The response of /livez after the materialiser has failed."""


@dataclass(eq=False)
class OwnerUnreachable(
    Problem,
    status=HTTPStatus.BAD_GATEWAY,
    code="owner-unreachable",
    title="No instance with the partition responds",
    detail="The connection failed",
    retry_after=1,
    example=(2, ["http://10.0.0.7:8080"]),
):
    partition: int
    tried: Sequence[str]

    def describe(self) -> str:
        return f"{', '.join(self.tried)} hold partition {self.partition}. {self.detail}. Repeat the request later."


class OwnerTimeout(
    OwnerUnreachable, status=HTTPStatus.GATEWAY_TIMEOUT, code="owner-timeout", detail="There was no response in time"
):
    """The owner, and every copy that was tried, did not respond in time."""


class InternalError(
    Problem,
    status=HTTPStatus.INTERNAL_SERVER_ERROR,
    code="internal-error",
    title=HTTPStatus.INTERNAL_SERVER_ERROR.phrase,
    detail="The request failed because of a defect. The log of the server has the cause. Report it to the operator.",
):
    """An error that no other problem describes."""


ANOTHER_MAY_ANSWER = frozenset(each.code for each in (NotTheOwner, Starting, Restoring, Stopping, TooStale))
"""Codes of the problems for which another instance may have an answer."""


def from_store_error(error: NotServingError | StoreError, partition: int) -> Problem:
    """The problem of a read that the local copy of a partition cannot serve."""
    if isinstance(error, StoreCorruptError):
        return Restoring(partition, 0.0)
    if isinstance(error, StoreError):
        return Stopping()
    if error.task is None:
        return Starting(partition)
    return Restoring(partition, error.task.progress.restored_share)


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
        problem = kind.from_example()
        response["content"][MEDIA_TYPE]["examples"][kind.code] = {"summary": kind.title, "value": problem.body()}
        if problem.retry_after is not None:
            response["headers"] = {
                "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
            }
    return described


def install(app: FastAPI) -> None:
    """Turn every error of the app, the framework's own included, into a problem."""

    @app.exception_handler(Problem)
    async def answer_problem(_: Request, problem: Problem) -> Response:
        return problem.response()

    @app.exception_handler(HTTPException)
    async def answer_framework_error(_: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, Problem):
            return error.__cause__.response()
        status = HTTPStatus(error.status_code)
        code = {400: "unreadable-body", 404: "unknown-route", 405: "method-not-allowed"}.get(status, "http-error")
        problem = OtherProblem(status, code, status.phrase, str(error.detail))
        problem.headers = error.headers or {}
        return problem.response()

    @app.exception_handler(RequestValidationError)
    async def answer_invalid_request(_: Request, error: RequestValidationError) -> Response:
        errors = [{"in": list(map(str, each["loc"])), "reason": each["msg"]} for each in error.errors()]
        return InvalidParameters(errors).response()

    @app.exception_handler(Exception)
    async def answer_unexpected_error(_: Request, __: Exception) -> Response:
        return InternalError().response()
