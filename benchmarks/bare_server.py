"""A server for comparison: one Starlette route with a constant response, and the server options of the API."""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

BODY = (
    b'{"CustomerCardNo":"0000000000","TotalLoyaltyPoints":"417.04","Sequence":7,"UpdatedTime":"2026-01-01T00:00:00Z"}'
)


async def hello(_: Request) -> Response:
    return Response(BODY, media_type="application/json")


if __name__ == "__main__":
    uvicorn.run(
        Starlette(routes=[Route("/{path:path}", hello)]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        server_header=False,
    )
