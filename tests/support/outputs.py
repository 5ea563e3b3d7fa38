"""A pytest plugin (tests/conftest.py) that searches the outputs of processes for cards and credentials of the tests.

It searches for:

card         each CustomerCardNo that the test process encodes or decodes, and each card in the path of a request
password     the lines of each file that a LOYALTY_…PASSWORD_FILE, …SECRET_FILE or …KEY_FILE names
credentials  everything that has the form of an API key, a token or a webhook secret

It searches in:

log          files to which a process writes its output, the stderr of a command, and what pytest captures
metric       responses of /metrics
error        problems, and reports of /readyz
trace        spans that a test receives

It does not search the stdout of a command, because this is what the user asked for.
"""

import os
import re
import subprocess
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import httpx
import pytest

SEARCHED = {"integration", "spark"}
"""The folders of the tests whose outputs the plugin searches. A finding fails the test."""

_CREDENTIALS = re.compile(rb"lk_[0-9a-f]{12}_[\w-]{43}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|whsec_[\w+/=]{8,}")
_RECOGNISABLE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9]{5,}|\d{9,}")
"""The form of cards that are searched. A log can contain short words such as A and C1 by chance."""

_WORD = re.compile(rb"[A-Za-z0-9]+")
_SECRET_FILE = re.compile(r"LOYALTY_\w*(PASSWORD|SECRET|KEY)_FILE")
_SHORTEST_SECRET = 8
_CARD_OF_PATH = re.compile(r"/v1/customers/([^/?]+)")
_PROBLEM = "application/problem+json"


class Outputs:
    """The outputs of the tests in this process, and the texts that must not be in them."""

    def __init__(self) -> None:
        self._cards: set[bytes] = set()
        self._secret_files: set[Path] = set()
        self._read_up_to: dict[Path, int] = {}
        self._texts: list[tuple[str, bytes]] = []

    def use_card(self, card: object) -> None:
        if isinstance(card, str) and _RECOGNISABLE.fullmatch(card):
            self._cards.add(card.encode())

    def use_record(self, record: object) -> None:
        if isinstance(record, Mapping):
            self.use_card(record.get("CustomerCardNo"))

    def use_environment(self, environment: Mapping[str, str]) -> None:
        """Remember the files with secrets in the environment of a process. They may not exist yet."""
        self._secret_files |= {Path(value) for name, value in environment.items() if _SECRET_FILE.fullmatch(name)}

    def add_stream(self, stream: object) -> None:
        """Remember the file to which a process writes. Pytest or the caller of the process gets other streams."""
        if hasattr(stream, "fileno"):
            stream = stream.fileno()
        if isinstance(stream, int) and stream >= 0:
            file = Path(f"/proc/self/fd/{stream}").readlink()
            if file.is_file():
                self._read_up_to.setdefault(file, 0)

    def add_text(self, name: str, text: str | bytes | None) -> None:
        if text:
            self._texts.append((name, text if isinstance(text, bytes) else text.encode()))

    def findings(self) -> list[str]:
        """The places in new output that contain a card or credentials. The next call searches only later output."""
        secrets = self._secrets()
        searched = [*self._texts, *self._new_parts()]
        self._texts.clear()
        return [
            f"{name}: {found.decode(errors='replace')}"
            for name, content in searched
            for found in sorted(
                (self._cards & set(_WORD.findall(content)))
                | set(_CREDENTIALS.findall(content))
                | {secret for secret in secrets if secret in content}
            )
        ]

    def _new_parts(self) -> Iterator[tuple[str, bytes]]:
        for file, start in self._read_up_to.items():
            if file.exists() and (size := file.stat().st_size) != start:
                with file.open("rb") as opened:
                    opened.seek(start if start < size else 0)
                    yield str(file), opened.read()
                self._read_up_to[file] = size

    def _secrets(self) -> Collection[bytes]:
        lines = {line for file in self._secret_files if file.is_file() for line in file.read_bytes().splitlines()}
        return {line for line in lines if len(line) >= _SHORTEST_SECRET}


OUTPUTS = Outputs()


class RecordedProcess(subprocess.Popen[Any]):
    """A process whose output is searched."""

    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        super().__init__(args, *more, **options)
        OUTPUTS.use_environment(options.get("env") or os.environ)
        for stream in ("stdout", "stderr"):
            OUTPUTS.add_stream(options.get(stream))

    def communicate(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        stdout, stderr = super().communicate(*arguments, **options)
        OUTPUTS.add_text(f"stderr of {self.args!r}", stderr)
        return stdout, stderr


def _send(send: Callable[..., httpx.Response]) -> Callable[..., httpx.Response]:
    """``httpx.Client.send``, which also records the card of the request, and metrics and problems of the response."""

    def recorded(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        path = request.url.path
        if card := _CARD_OF_PATH.match(path):
            OUTPUTS.use_card(card[1])
        response = send(client, request, **options)
        is_problem = response.headers.get("content-type") == _PROBLEM
        if not options.get("stream") and (is_problem or path in ("/metrics", "/readyz")):
            OUTPUTS.add_text(f"response of {path}", response.content)
        return response

    return recorded


def _writer(write: Callable[..., None]) -> Callable[..., None]:
    def recorded(stream: Any, schema: Any, record: Any, *more: Any, **options: Any) -> None:
        OUTPUTS.use_record(record)
        write(stream, schema, record, *more, **options)

    return recorded


def _reader(read: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(*arguments: Any, **options: Any) -> Any:
        record = read(*arguments, **options)
        OUTPUTS.use_record(record)
        return record

    return recorded


def pytest_configure() -> None:
    """Observe all requests and processes of the tests, without a change of their behaviour."""
    subprocess.Popen = RecordedProcess  # type: ignore[misc]
    httpx.Client.send = _send(httpx.Client.send)  # type: ignore[method-assign]
    fastavro.schemaless_writer = _writer(fastavro.schemaless_writer)
    fastavro.schemaless_reader = _reader(fastavro.schemaless_reader)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """If an output contains a card or credentials, let the teardown of the test fail."""
    report = yield
    if call.when == "teardown" and item.path.parent.name in SEARCHED:
        for name, text in report.sections:
            OUTPUTS.add_text(name, text)
        if found := OUTPUTS.findings():
            text = "\n".join(["an output has a card or credentials of the test:", *sorted(set(found))])
            report.outcome, report.longrepr = "failed", text
    return report
