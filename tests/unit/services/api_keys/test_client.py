"""Requests with a key: services.api_keys.client."""

from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError

import pytest

from services.api_keys.client import opener
from tests.support.http_server import QuietHandler, serving


def test_a_key_follows_no_redirect_and_passes_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other server could use the key."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    (tmp_path / "key").write_text("lk_secret\n")
    asked: list[str | None] = []

    class Other(QuietHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_response(HTTPStatus.OK)
            self.end_headers()

    with ExitStack() as stack:
        other = stack.enter_context(serving(Other))

        class Moved(QuietHandler):
            def do_GET(self) -> None:
                self.send_response(HTTPStatus.FOUND)
                self.send_header("Location", other)
                self.end_headers()

        url = stack.enter_context(serving(Moved))
        with pytest.raises(HTTPError, match="302") as refused:
            opener(tmp_path / "key").open(url, timeout=5)
        refused.value.close()
    assert [] == asked
