"""An API without credentials serves programs of this machine only, and no web pages of other sites."""

from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from api.security.problems import ForeignHost
from services.settings import is_loopback

_MOST_NAMES = 100


class OwnMachineOnly:
    """Refuses requests whose header Host does not name this machine.

    An attacker can change the address of his own host name to 127.0.0.1 (DNS rebinding). Then his page and this API
    have the same origin, so the browser lets his page read the API and send commands. But the header Host has his host
    name.

    Args:
        url: the URL at which other instances reach this one. Its host name is a name of this machine.
    """

    def __init__(self, app: ASGIApp, url: str) -> None:
        self._app = app
        self._own_name = urlsplit(url).hostname
        self._known: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"host" and value not in self._known and not self._is_here(value):
                    await ForeignHost().response()(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _is_here(self, host: bytes) -> bool:
        try:
            name = urlsplit("//" + host.decode("latin-1")).hostname or ""
        except ValueError:
            return False
        is_here = name == self._own_name or name.endswith(".localhost") or is_loopback(name)
        if is_here and len(self._known) < _MOST_NAMES:
            self._known.add(host)
        return is_here
