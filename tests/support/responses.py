"""Bodies of responses that a client reads."""

from collections.abc import AsyncIterator

import anyio
import httpx


class SlowToClose(httpx.AsyncByteStream):
    """An empty body whose close takes 0.3 seconds. As in httpx, only a timeout of anyio cannot interrupt the close."""

    is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b""

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.3)
        self.is_closed = True
