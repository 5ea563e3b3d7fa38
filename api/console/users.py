"""The user of a request to the console, and the forms that the user sends."""

from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request

from api.console.own_api import Answer, call
from api.http.problems import UnreadableBody

_MOST_FIELDS = 2_000
"""The most fields of a form. A million would keep an instance busy. A replay may have 1,000 positions."""


class NoCallerError(Exception):
    """The API cannot say now who the user is.

    Attributes:
        problem: the problem that the API returned.
    """

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem)
        self.problem = problem


class SignInNeededError(Exception):
    """The request has no valid credentials, or did not come from the console. The user must sign in."""


async def ask(request: Request, method: str, path: str, **arguments: Any) -> Answer:
    """Send a request to the API for the user. Raises SignInNeededError if the API does not know the user."""
    answer = await call(request, method, path, **arguments)
    if answer.status == HTTPStatus.UNAUTHORIZED:
        raise SignInNeededError
    return answer


async def user_of(request: Request) -> dict[str, Any]:
    """The user, as ``CallerReport`` in JSON. Raises SignInNeededError or NoCallerError."""
    answer = await ask(request, "GET", "/v1/caller")
    if not answer.is_good:
        raise NoCallerError(answer.body)
    return answer.body


async def fields_of(request: Request) -> list[tuple[str, str]]:
    """The names and values of a user's form. Raises SignInNeededError or NoCallerError before it reads the form."""
    await user_of(request)
    return await fields_of_anybody(request)


async def fields_of_anybody(request: Request) -> list[tuple[str, str]]:
    """The names and values of a form, also without a user.

    Raises SignInNeededError for a form of another site, and UnreadableBody for too many fields.
    """
    if "hx-request" not in request.headers:
        raise SignInNeededError
    form = (await request.body()).decode("utf-8", "replace")
    if form.count("&") >= _MOST_FIELDS:
        raise UnreadableBody(reason=f"it has more than {_MOST_FIELDS:,} fields")
    return parse_qsl(form)


async def form_of(request: Request) -> dict[str, str]:
    """The values of a form without blanks around them, by name. Raises the errors of ``fields_of``."""
    return {name: value.strip() for name, value in await fields_of(request)}
