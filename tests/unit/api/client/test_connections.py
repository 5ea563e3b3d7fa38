"""The clients on real connections: damaged TLS, redirects, headers, and the end of a client."""

import asyncio
import json
import os
import ssl
from collections.abc import Callable
from decimal import Decimal
from email.message import Message
from pathlib import Path
from threading import Event
from typing import ClassVar

import httpx
import pytest

from api.client.clients import AsyncLoyaltyClient, LoyaltyClient
from api.client.errors import ProblemError
from infra.local.ports import HOST
from infra.security.certificates import Authority
from tests.support.http_server import QuietHandler, serving

PATIENCE_SECONDS = 10
DECISION = {
    **dict.fromkeys(("Points", "ReservedPoints", "TotalLoyaltyPoints", "AvailableLoyaltyPoints"), "1.00"),
    **dict.fromkeys(("Reason", "ExpiresTime", "AccountSequence", "OpenedTime", "UpdatedTime")),
    "CommandID": "c1",
    "Status": "done",
    "Kind": "reserve",
    "CustomerCardNo": "CARD17",
    "RedemptionID": "c1",
}


class Api(QuietHandler):
    """An API that decides each command at once, and keeps the headers of the requests."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[Message]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.headers)
        self.respond()

    def respond(self) -> None:
        self.send(201)

    def send(self, status: int, **headers: str) -> None:
        body = json.dumps(DECISION).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


Redeem = Callable[..., None]


def redeem_sync(url: str, key: str, credentials: str | None = None, trust: ssl.SSLContext | None = None) -> None:
    transport = httpx.HTTPTransport(verify=trust) if trust else None
    with LoyaltyClient(url, credentials=credentials, transport=transport) as client:
        client.redeem("CARD17", Decimal(1), idempotency_key=key)


def redeem_async(url: str, key: str, credentials: str | None = None, trust: ssl.SSLContext | None = None) -> None:
    async def main() -> None:
        transport = httpx.AsyncHTTPTransport(verify=trust) if trust else None
        async with AsyncLoyaltyClient(url, credentials=credentials, transport=transport) as client:
            await client.redeem("CARD17", Decimal(1), idempotency_key=key)

    asyncio.run(main())


@pytest.fixture(params=[redeem_sync, redeem_async], ids=["sync", "async"])
def redeem(request: pytest.FixtureRequest) -> Redeem:
    found: Redeem = request.param
    return found


def test_a_command_is_repeated_after_a_tls_error(redeem: Redeem, tmp_path: Path) -> None:
    """The first response is damaged on its way, so the command may be executed. httpx has no error of its own for TLS
    errors of the async client.
    """
    authority, certificate = Authority.new(), tmp_path / "certificate.pem"
    certificate.write_bytes(authority.broker_pem([HOST]))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    class TlsApi(Api):
        seen: ClassVar[list[Message]] = []

        def setup(self) -> None:
            self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def respond(self) -> None:
            if len(self.seen) > 1:
                self.send(201)
            else:
                os.write(self.connection.fileno(), b"HTTP/1.1 without TLS")
                self.close_connection = True

        def finish(self) -> None:
            super().finish()
            self.connection.close()

    with serving(TlsApi) as url:
        trust = ssl.create_default_context(cadata=authority.certificate_pem().decode())
        redeem(url.replace("http:", "https:"), "mine", trust=trust)
    assert ["mine"] * 2 == [headers["Idempotency-Key"] for headers in TlsApi.seen]


def test_credentials_do_not_follow_a_redirect(redeem: Redeem) -> None:
    """The server that redirects may have executed the command, so the problem has the key."""

    class Other(Api):
        seen: ClassVar[list[Message]] = []

    with serving(Other) as other:

        class Redirecting(Api):
            seen: ClassVar[list[Message]] = []

            def respond(self) -> None:
                self.send(307, Location=f"{other}{self.path}")

        with serving(Redirecting) as url, pytest.raises(ProblemError, match="307") as raised:
            redeem(url, "mine", credentials="secret")
    assert (1, [], "mine") == (len(Redirecting.seen), Other.seen, raised.value.idempotency_key)


def test_every_key_and_all_credentials_that_a_client_accepts_can_be_sent(redeem: Redeem) -> None:
    """The client itself refuses what httpx would refuse, because an error of httpx can contain the credentials."""

    class Deciding(Api):
        seen: ClassVar[list[Message]] = []

    visible = "".join(chr(code) for code in range(ord("!"), ord("~") + 1))
    with serving(Deciding) as url:
        redeem(url, f"a  {visible}", credentials=visible)
    [headers] = Deciding.seen
    assert (f"a  {visible}", f"Bearer {visible}") == (headers["Idempotency-Key"], headers["Authorization"])


def test_the_end_of_a_client_closes_its_connections() -> None:
    closed = Event()

    class Deciding(Api):
        seen: ClassVar[list[Message]] = []

        def finish(self) -> None:
            super().finish()
            closed.set()

    async def use_async(url: str) -> None:
        async with AsyncLoyaltyClient(url) as client:
            await client.redeem("CARD17", Decimal(1))
            assert not closed.is_set()
        assert await asyncio.to_thread(closed.wait, PATIENCE_SECONDS)

    with serving(Deciding) as url:
        client = LoyaltyClient(url)
        with client:
            client.redeem("CARD17", Decimal(1))
            assert not closed.is_set()
        assert closed.wait(PATIENCE_SECONDS)
        closed.clear()
        asyncio.run(use_async(url))
