"""The page /docs: it loads everything from its own instance, and can send credentials."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from http import HTTPStatus
from urllib.parse import urljoin, urlsplit

import pytest
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from starlette.responses import JSONResponse

from api.http import error_handlers
from api.http.documentation import PATHS
from api.http.problems import InvalidParameters, responses


class Addresses(HTMLParser):
    """The addresses in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {value for name, value in attrs if name in ("src", "href") and value}


def policy_of(header: str) -> dict[str, list[str]]:
    return {name: sources for name, *sources in (directive.split() for directive in header.split(";"))}


def test_the_page_loads_its_files_from_this_instance(client: TestClient) -> None:
    """The page names no other host. Each of its files is there, with the type that a browser needs."""
    page = client.get("/docs")
    parser = Addresses()
    parser.feed(page.text)

    assert page.status_code == 200
    assert parser.found == PATHS - {"/docs"}
    assert "//" not in page.text
    files = {path: client.get(path) for path in parser.found}
    assert {200} == {answer.status_code for answer in files.values()}
    types = {
        path.rpartition(".")[2]: answer.headers["content-type"].partition(";")[0] for path, answer in files.items()
    }
    assert types == {"js": "text/javascript", "css": "text/css", "png": "image/png"}
    assert "SwaggerUIBundle" in files["/docs/swagger-ui-bundle.js"].text


def test_the_style_sheet_loads_nothing_from_other_hosts(client: TestClient) -> None:
    """The pictures of the style sheet are inside of it."""
    text = client.get("/docs/swagger-ui.css").text
    addresses = re.findall(r"url\(\s*[\"']?([^\"')\s]+)", text) + re.findall(r"@import\s+[\"']([^\"']+)", text)

    assert addresses
    assert {"data"} == {urlsplit(urljoin("http://self", address)).scheme for address in addresses}


def test_the_browser_refuses_other_hosts(client: TestClient) -> None:
    """The policy allows this instance only, and of the scripts in the page only the one that it has."""
    page = client.get("/docs")
    policy = policy_of(page.headers["content-security-policy"])
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == ["'self'", f"'sha256-{digest}'"]
    assert {"'self'", "'none'", "'unsafe-inline'", "data:", f"'sha256-{digest}'"} == {
        source for sources in policy.values() for source in sources
    }


def test_the_text_of_the_document_is_made_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may read the document. An instance that made 400 KB of JSON for each request would be busy."""
    first = client.get("/openapi.json")
    monkeypatch.setattr(JSONResponse, "render", lambda *_: b"")
    again, head = client.get("/openapi.json"), client.head("/openapi.json")

    assert (200, "application/json") == (first.status_code, first.headers["content-type"])
    assert isinstance(client.app, FastAPI)
    assert client.app.openapi() == first.json()
    assert (first.content, first.headers) == (again.content, again.headers)
    assert (200, b"", first.headers) == (head.status_code, head.content, head.headers)


def test_the_page_can_send_credentials(client: TestClient) -> None:
    """Swagger UI shows its button Authorize for the schemes of the document. No other page of FastAPI is served."""
    schemes = client.get("/openapi.json").json()["components"]["securitySchemes"]

    assert [("http", "bearer")] == [(scheme["type"], scheme["scheme"]) for scheme in schemes.values()]
    assert client.get("/redoc").status_code == 404
    assert client.head("/docs").status_code == 200
    assert client.get("/docs/redoc.standalone.js").status_code == 404


def test_texts_do_not_depend_on_the_version_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 has other phrases than Python 3.11 for some statuses."""
    monkeypatch.setattr(HTTPStatus.UNPROCESSABLE_ENTITY, "phrase", "another phrase")
    app = FastAPI()
    error_handlers.install(app)

    @app.get("/")
    def fail() -> None:
        raise HTTPException(422, "because")

    assert "Unprocessable Entity" == responses(InvalidParameters)[422]["description"]
    assert "Unprocessable Entity" == TestClient(app).get("/").json()["title"]
