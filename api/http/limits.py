"""Limits of the size of request bodies. The limit applies before the body is in memory."""

from http import HTTPStatus

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http import problems

_COMMAND_BYTES = 16 * 1024
"""A command has only a few short texts."""

_LIMITS = (
    ("/v1/stores/", 4 * 2**20),  # 1,000 keys of 512 characters, each of them escaped
    ("/console/operations/", 2**20),
    ("/v1/programmes", 2**20),
    ("/v1/dead-letters", 2**20),
    ("/v1/simulate", 2**20),  # the limit of Kafka for an invoice
)


def limit_of(path: str) -> int:
    return next((limit for prefix, limit in _LIMITS if path.startswith(prefix)), _COMMAND_BYTES)


class BodyLimitMiddleware:
    """Responds with 413 if Content-Length is too large, or as soon as a body becomes too large."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = limit_of(scope["path"])
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
            await problems.BodyTooLarge(limit=limit).response()(scope, receive, send)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                # FastAPI turns every exception inside a body into 400, except its own. The response comes from the
                # cause of the exception.
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE) from problems.BodyTooLarge(limit=limit)
            return message

        await self._app(scope, receive_limited, send)
