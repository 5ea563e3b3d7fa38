"""Errors that an integrator can act on: every one is application/problem+json (RFC 9457)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from services.state_stores.store import NotServingError

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:problem-type:loyalty:"
"""Problem types are names, not addresses: a deployment has no documentation server that they could point to."""


NOT_THE_OWNER = "not-the-owner"
SEQUENCE_NOT_REACHED = "sequence-not-reached"
ANOTHER_MAY_ANSWER = frozenset({NOT_THE_OWNER, "starting", "restoring", "stopping", "too-stale"})
"""Of these an instance says no more than that it is not the one to ask."""


@dataclass(eq=False)  # not frozen: whoever raises or passes on an exception sets its traceback
class ProblemError(Exception):
    """A problem on its way to the caller.

    Attributes:
        name: the last part of the type; what programs tell problems apart by.
        retry_after: seconds after which the same request is worth repeating.
        extensions: members beside those of the RFC.
    """

    status: HTTPStatus
    name: str
    title: str
    detail: str
    retry_after: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def another_may_answer(self) -> bool:
        """Whether it is worth asking another instance."""
        return self.name in ANOTHER_MAY_ANSWER

    def response(self) -> Response:
        headers = dict(self.headers)
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return Response(orjson.dumps(self.body()), self.status, headers, MEDIA_TYPE)

    def body(self) -> dict[str, Any]:
        return {
            "type": TYPE_PREFIX + self.name,
            "title": self.title,
            "status": self.status.value,
            "detail": self.detail,
            **self.extensions,
        }


def unknown_customer() -> ProblemError:
    return ProblemError(
        HTTPStatus.NOT_FOUND,
        "unknown-customer",
        "No such customer",
        "No balance is known for this card. A balance appears with the first PRIME invoice.",
    )


def unknown_store(stores: Sequence[str]) -> ProblemError:
    return ProblemError(
        HTTPStatus.NOT_FOUND,
        "unknown-store",
        "No such store",
        f"The stores are {', '.join(stores)}.",
        extensions={"stores": stores},
    )


def unknown_key() -> ProblemError:
    return ProblemError(
        HTTPStatus.NOT_FOUND, "unknown-key", "No such key", "The store exists and has no such key at this time."
    )


def unreadable_body() -> ProblemError:
    return ProblemError(HTTPStatus.BAD_REQUEST, "unreadable-body", "Bad Request", "There was an error parsing the body")


def not_windowed(store: str) -> ProblemError:
    return ProblemError(
        HTTPStatus.BAD_REQUEST,
        "not-windowed",
        "The store has no windows",
        f"{store} has one entry a key: ask for keys.",
    )


def not_here(partition: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.MISDIRECTED_REQUEST,
        "not-here",
        "The partition is on another instance",
        f"Partition {partition} is not on this instance; the path without /local finds the one that has it.",
        extensions={"partition": partition},
    )


def restoring(partition: int, restored_share: float) -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "restoring",
        "The store is being restored",
        f"Partition {partition} is being read from its changelog; nothing is served from it before it is complete.",
        retry_after=1,
        extensions={"partition": partition, "restoredShare": round(restored_share, 4)},
    )


def starting(partition: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "starting",
        "The instance is starting",
        f"Partition {partition} has not been opened yet; /readyz says what it waits for.",
        retry_after=1,
        extensions={"partition": partition},
    )


def stopping() -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "stopping",
        "The store is closed",
        "This instance is stopping or has given the partition up.",
        retry_after=1,
    )


def not_serving(error: NotServingError) -> ProblemError:
    if error.task is None:
        return starting(error.partition)
    return restoring(error.partition, error.task.progress.restored_share)


def rebalancing(partition: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "rebalancing",
        "The partition is on its way",
        f"The group is deciding who serves partition {partition}, and no instance has a copy of it to read from.",
        retry_after=1,
        extensions={"partition": partition},
    )


def not_the_owner(partition: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.MISDIRECTED_REQUEST,
        NOT_THE_OWNER,
        "The partition has moved",
        f"Partition {partition} was asked of its owner, and this instance is not that: it must be discovered again.",
        extensions={"partition": partition},
    )


def owner_unreachable(partition: int, tried: Sequence[str], *, timed_out: bool) -> ProblemError:
    return ProblemError(
        HTTPStatus.GATEWAY_TIMEOUT if timed_out else HTTPStatus.BAD_GATEWAY,
        "owner-timeout" if timed_out else "owner-unreachable",
        "No instance with the partition answers",
        f"Partition {partition} is held by {', '.join(tried)}; "
        f"{'there was no answer in time' if timed_out else 'the connection failed'}.",
        retry_after=1,
        extensions={"partition": partition, "tried": tried},
    )


def too_stale(max_lag: int, lag: int | None) -> ProblemError:
    known = "is not known now" if lag is None else f"is {lag} records"
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too-stale",
        "No copy is as fresh as asked for",
        f"The owner does not answer, and how far the best copy lags {known}; maxLag is {max_lag}.",
        retry_after=1,
        extensions={"maxLag": max_lag, "lag": lag},
    )


def sequence_not_reached(wanted: int, current: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        SEQUENCE_NOT_REACHED,
        "The balance is older than asked for",
        f"The customer's sequence is {current} (0: no balance yet), {wanted} was asked for, and the timeout is over.",
        retry_after=1,
        extensions={"minSequence": wanted, "currentSequence": current},
    )


def body_too_large(limit: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "body-too-large",
        "The body is too large",
        f"This path takes up to {limit} bytes.",
        extensions={"limit": limit},
    )


def programme_unreadable(version: int) -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "programme-unreadable",
        "The loyalty programme cannot be read",
        f"Version {version} of the programme is not one that this instance understands: it may be too old for it.",
        retry_after=60,
        extensions={"version": version},
    )


def passed_on(response: Response) -> ProblemError:
    """The problem that another instance, or another route, has answered with."""
    body = orjson.loads(response.body)
    known = {name: body.pop(name) for name in ("type", "title", "status", "detail")}
    retry_after = response.headers.get("Retry-After")
    return ProblemError(
        HTTPStatus(known["status"]),
        str(known["type"]).removeprefix(TYPE_PREFIX),
        known["title"],
        known["detail"],
        retry_after=int(retry_after) if retry_after else None,
        extensions=body,
    )


def not_ready(report: Mapping[str, Any]) -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "not-ready",
        "Not ready",
        "Not every partition has reached the end that its changelog had at the start.",
        retry_after=1,
        extensions=report,
    )


def not_alive() -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "not-alive",
        "The instance must be restarted",
        "The materialiser has died or does not turn; the log says why.",
    )


def invalid_parameters(errors: list[dict[str, Any]]) -> ProblemError:
    return ProblemError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid-parameters",
        "Invalid parameters",
        "; ".join(f"{each['in'][-1]}: {each['reason']}" for each in errors),
        extensions={"errors": errors},
    )


def unexpected() -> ProblemError:
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return ProblemError(status, "internal-error", status.phrase, "The server's log has the cause.")


def install(app: FastAPI) -> None:
    """Turn every error of the app, the framework's own included, into a problem."""

    @app.exception_handler(ProblemError)
    async def own(_: Request, error: ProblemError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def of_framework(_: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, ProblemError):
            return error.__cause__.response()
        status = HTTPStatus(error.status_code)
        name = {400: "unreadable-body", 404: "unknown-route", 405: "method-not-allowed"}.get(status, "http-error")
        return ProblemError(status, name, status.phrase, str(error.detail), headers=error.headers or {}).response()

    @app.exception_handler(RequestValidationError)
    async def of_validation(_: Request, error: RequestValidationError) -> Response:
        errors = [{"in": list(map(str, each["loc"])), "reason": each["msg"]} for each in error.errors()]
        return invalid_parameters(errors).response()

    @app.exception_handler(Exception)
    async def of_nobody(_: Request, __: Exception) -> Response:
        return unexpected().response()
