"""How large a request's body may be: plain ASGI, before anything is read into memory."""

from http import HTTPStatus

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http import problems

COMMAND_BYTES = 16 * 1024
"""A command has a few short texts."""

BASKET_BYTES = 2**20
"""As Kafka takes an invoice."""

KEYS_BYTES = 4 * 2**20
"""1,000 keys of 512 characters, each of them escaped."""

_PATHS = (("/v1/stores/", KEYS_BYTES), ("/v1/simulate", BASKET_BYTES))


def limit_of(path: str) -> int:
    return next((limit for prefix, limit in _PATHS if path.startswith(prefix)), COMMAND_BYTES)


class BodyLimitMiddleware:
    """Answers 413 to a body that is announced as too large, and breaks off one that turns out to be."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = limit_of(scope["path"])
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
            await problems.BodyTooLarge(limit).response()(scope, receive, send)
            return
        received = 0

        async def count() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                # Of all errors amid a body, FastAPI lets only its own through; ours is the cause, and the answer.
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE) from problems.BodyTooLarge(limit)
            return message

        await self._app(scope, count, send)
