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
    pass


class UnknownCustomer(
    NotFound,
    code="unknown-customer",
    title="No such customer",
    detail="No balance is known for this card. A balance appears with the first PRIME invoice.",
):
    pass


class NoLedgerEntries(
    NotFound,
    code="unknown-customer",
    title="No such customer",
    detail="The ledger has no entry of this card. Entries appear a moment after the balance.",
):
    pass


@dataclass(eq=False)
class UnknownStore(
    NotFound, code="unknown-store", title="No such store", example=(("customer-balances", "top-customers"),)
):
    stores: Sequence[str]

    def describe(self) -> str:
        return f"The stores are {', '.join(self.stores)}."


class UnknownKey(
    NotFound, code="unknown-key", title="No such key", detail="The store exists and has no such key at this time."
):
    pass


class UnknownCommand(
    NotFound,
    code="unknown-command",
    title="No such command",
    detail="No command of this id has been given in the last days, or its customer is erased.",
):
    pass


class UnknownRedemption(
    NotFound,
    code="unknown-redemption",
    title="No such redemption",
    detail="No redemption of this id has been made in the last days.",
):
    pass


class BadRequest(Problem, status=HTTPStatus.BAD_REQUEST):
    pass


class UnreadableBody(
    BadRequest, code="unreadable-body", title="Bad Request", detail="There was an error parsing the body"
):
    pass


class IdempotencyKeyMissing(
    BadRequest,
    code="idempotency-key-missing",
    title="Idempotency-Key is missing",
    detail="A command needs the header Idempotency-Key, 1 to 255 printable ASCII characters, new for each command and "
    "the same when it is repeated.",
):
    pass


class NotWindowed(BadRequest, code="not-windowed", title="The store has no windows", example=("customer-balances",)):
    def __init__(self, store: str) -> None:
        self.detail = f"{store} has one entry a key: ask for keys."


@dataclass(eq=False)
class BodyTooLarge(
    Problem,
    status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    code="body-too-large",
    title="The body is too large",
    detail="This path takes up to {limit} bytes.",
    example=(2**20,),
):
    limit: int


class Unprocessable(Problem, status=HTTPStatus.UNPROCESSABLE_ENTITY):
    pass


@dataclass(eq=False)
class InvalidParameters(
    Unprocessable,
    code="invalid-parameters",
    title="Invalid parameters",
    example=([{"in": ["query", "minSequence"], "reason": "Input should be an integer"}],),
):
    """Its errors have the members ``in``, the path to the value, and ``reason``."""

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
    detail="A command was given to this path under the same key with another body; a new command needs a new key.",
):
    pass


class Misdirected(Problem, status=HTTPStatus.MISDIRECTED_REQUEST):
    pass


@dataclass(eq=False)
class NotHere(
    Misdirected,
    code="not-here",
    title="The partition is on another instance",
    detail="Partition {partition} is not on this instance; the path without /local finds the one that has it.",
    example=(2,),
):
    partition: int


@dataclass(eq=False)
class NotTheOwner(
    Misdirected,
    code="not-the-owner",
    title="The partition has moved",
    detail="Partition {partition} was asked of its owner, and this instance is not that: it must be discovered again.",
    example=(2,),
):
    partition: int


class Conflict(Problem, status=HTTPStatus.CONFLICT):
    pass


@dataclass(eq=False)
class CommandInFlight(
    Conflict,
    code="command-in-flight",
    title="The command is being worked on",
    detail="The same command was given before and is not decided; Location tells what becomes of it.",
    example=("/v1/commands/0b9f0e5c-7a53-5f0d-8f43-5ffb1a0c9a3e", 1),
):
    location: str
    retry_after: int


class RedemptionPending(
    Conflict,
    code="redemption-pending",
    title="The redemption is not decided yet",
    detail="The points have not been set aside yet, and may be refused; nothing was sent, ask again.",
    retry_after=1,
):
    pass


class CommandRefused(Conflict, title="The command was refused", detail="The programme does not allow it."):
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
    detail="The customer can spend fewer points now than the command takes; AvailableLoyaltyPoints says how many.",
):
    pass


class RedemptionNotOpen(
    CommandRefused,
    code="unknown-redemption",
    title="The redemption is not open",
    detail="It was captured, made void or has lapsed before.",
):
    pass


class SameCustomer(
    CommandRefused,
    code="same-customer",
    title="Both cards are the same",
    detail="Points cannot be transferred to the card that they come from.",
):
    pass


_REFUSALS = {each.code: each for each in (InsufficientPoints, RedemptionNotOpen, SameCustomer)}


class Unavailable(Problem, status=HTTPStatus.SERVICE_UNAVAILABLE, retry_after=1):
    """A state that ends without the client."""


@dataclass(eq=False)
class Starting(
    Unavailable,
    code="starting",
    title="The instance is starting",
    detail="Partition {partition} has not been opened yet; /readyz says what it waits for.",
    example=(2,),
):
    partition: int


@dataclass(eq=False)
class Restoring(
    Unavailable,
    code="restoring",
    title="The store is being restored",
    detail="Partition {partition} is being read from its changelog; nothing is served from it before it is complete.",
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
    detail="This instance is stopping or has given the partition up.",
):
    pass


@dataclass(eq=False)
class Rebalancing(
    Unavailable,
    code="rebalancing",
    title="The partition is on its way",
    detail="The group is deciding who serves partition {partition}, and no instance has a copy of it to read from.",
    example=(2,),
):
    partition: int


@dataclass(eq=False)
class TooStale(Unavailable, code="too-stale", title="No copy is as fresh as asked for", example=(0, 7)):
    max_lag: int
    lag: int | None

    def describe(self) -> str:
        known = "is not known now" if self.lag is None else f"is {self.lag} records"
        return f"The owner does not answer, and how far the best copy lags {known}; maxLag is {self.max_lag}."


@dataclass(eq=False)
class SequenceNotReached(
    Unavailable,
    code="sequence-not-reached",
    title="The balance is older than asked for",
    detail="The customer's sequence is {current_sequence} (0: no balance yet), {min_sequence} was asked for, and the "
    "timeout is over.",
    example=(7, 6),
):
    min_sequence: int
    current_sequence: int


@dataclass(eq=False)
class OwnerInDoubt(
    Unavailable,
    code="owner-in-doubt",
    title="Nobody can say for certain what was asked before",
    detail="The owner of partition {partition} has not heard from Kafka lately, or is still catching up; commands wait "
    "until it has.",
    example=(2,),
):
    partition: int


@dataclass(eq=False)
class KafkaUnavailable(
    Unavailable,
    code="kafka-unavailable",
    title="Kafka does not take the command",
    detail="Nothing is known to have been done. The same request with the same Idempotency-Key can be repeated safely.",
    example=(1,),
):
    retry_after: int


class TooManyCommands(
    Unavailable,
    code="too-many-commands",
    title="The instance has enough to do",
    detail="As many commands as an instance works on at once are waiting for their decisions; this one was not sent.",
):
    pass


class LedgerUnavailable(
    Unavailable,
    code="ledger-unavailable",
    title="The ledger does not answer",
    detail="Its database cannot be reached now, or no ledger process has made one yet. Balances are served without it.",
    retry_after=5,
):
    pass


@dataclass(eq=False)
class ProgrammeUnreadable(
    Unavailable,
    code="programme-unreadable",
    title="The loyalty programme cannot be read",
    detail="Version {version} of the programme is not one that this instance understands: it may be too old for it.",
    retry_after=60,
    example=(4,),
):
    version: int


@dataclass(eq=False)
class NotReady(
    Unavailable,
    code="not-ready",
    title="Not ready",
    detail="Not every partition has reached the end that its changelog had at the start.",
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
    detail="The materialiser has died or does not turn; the log says why.",
):
    pass


@dataclass(eq=False)
class OwnerUnreachable(
    Problem,
    status=HTTPStatus.BAD_GATEWAY,
    code="owner-unreachable",
    title="No instance with the partition answers",
    detail="the connection failed",
    retry_after=1,
    example=(2, ["http://10.0.0.7:8080"]),
):
    partition: int
    tried: Sequence[str]

    def describe(self) -> str:
        return f"Partition {self.partition} is held by {', '.join(self.tried)}; {self.detail}."


class OwnerTimeout(
    OwnerUnreachable, status=HTTPStatus.GATEWAY_TIMEOUT, code="owner-timeout", detail="there was no answer in time"
):
    pass


class InternalError(
    Problem,
    status=HTTPStatus.INTERNAL_SERVER_ERROR,
    code="internal-error",
    title=HTTPStatus.INTERNAL_SERVER_ERROR.phrase,
    detail="The server's log has the cause.",
):
    pass


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
