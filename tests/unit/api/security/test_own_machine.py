"""Without credentials the API answers this machine only."""

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.security.own_machine import OwnMachineOnly

app = FastAPI()


@app.get("/")
async def answer() -> str:
    return "points"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080")),
        *((host, 200) for host in ("till.localhost:1", "own.example:8080", "own.example")),
        *(
            (host, 403)
            for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example")
        ),
        *((host, 403) for host in ("10.0.0.1", "[::1", "", "localhost@evil.example", "evil-localhost")),
    ],
)
def test_a_page_of_another_name_is_refused(host: str, status: int) -> None:
    """A page can bind its host name to 127.0.0.1, but the header Host has that name.

    A second request gets the same response.
    """
    with TestClient(OwnMachineOnly(app, "http://own.example:8080")) as client:
        for _ in range(2):
            found = client.get("/", headers={"Host": host})
            assert status == found.status_code
            assert ("foreign-host" in found.text) == (status != 200)
