"""What can be known of the images and the compose file without an engine."""

import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.docker.healthy import is_healthy
from services.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "infra" / "docker").glob("*.Dockerfile"))
EVERY_DOCKERFILE = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
VARIABLES = {f"LOYALTY_{name.upper()}" for name in Settings.model_fields}


@pytest.fixture
def compose() -> dict[str, Any]:
    """The compose file as YAML gives it, anchors merged."""
    parsed: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return parsed


def dockerfile_of(service: dict[str, Any]) -> Path:
    return ROOT / str(service["build"]["dockerfile"])


def test_every_service_has_an_image_that_can_be_built(compose: dict[str, Any]) -> None:
    """Each service names a Dockerfile of the project, and services of one image build it from the same one."""
    by_image: dict[str, set[Path]] = {}
    for service in compose["services"].values():
        by_image.setdefault(service["image"], set()).add(dockerfile_of(service))
    assert set(DOCKERFILES) == {file for files in by_image.values() for file in files}
    assert all(1 == len(files) for files in by_image.values())


def test_settings_of_containers_exist() -> None:
    """Every LOYALTY_ variable in the compose file and the images is a setting."""
    texts = [path.read_text(encoding="utf-8") for path in [ROOT / "docker-compose.yml", *DOCKERFILES]]
    assert set() == {name for text in texts for name in re.findall(r"LOYALTY_[A-Z_]+", text)} - VARIABLES


def test_empty_values_of_the_compose_file_are_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that nobody sets reaches a container as an empty text, which must mean the default."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    with_empty = Settings()
    for name in VARIABLES:
        monkeypatch.delenv(name)
    assert Settings() == with_empty


def test_services_wait_for_evidence(compose: dict[str, Any]) -> None:
    """Whatever is waited for exists, and has a health check or an end."""
    services = compose["services"]
    for service in services.values():
        for name, wait in service.get("depends_on", {}).items():
            needed = services[name]
            if wait["condition"] == "service_healthy":
                assert "\nHEALTHCHECK " in dockerfile_of(needed).read_text(encoding="utf-8")
            else:
                assert ("service_completed_successfully", True) == (wait["condition"], "command" in needed)
                assert "restart" not in needed


def test_nothing_is_published_beyond_this_machine(compose: dict[str, Any]) -> None:
    """Every published port is bound to the loopback address, and the port behind it is one that the image exposes."""
    published = [(name, port) for name, service in compose["services"].items() for port in service.get("ports", ())]
    assert published
    for name, port in published:
        host, _, inside = port.rsplit(":", 2)
        exposed = re.findall(r"^EXPOSE (.*)$", dockerfile_of(compose["services"][name]).read_text(), re.MULTILINE)
        assert ("127.0.0.1", True) == (host, inside in exposed[0].split())


def test_the_api_can_be_scaled(compose: dict[str, Any]) -> None:
    """Instances share no name, no port and no named volume: RocksDB allows one process a folder."""
    api = compose["services"]["api"]
    assert "container_name" not in api
    assert all(re.search(r":\d+-\d+:\d+$", port) for port in api["ports"])
    assert all(":" not in volume for volume in api["volumes"])


def test_named_volumes_are_declared_and_owned(compose: dict[str, Any]) -> None:
    """A new volume takes its owner from the folder in the image: without one, root owns what a user must write."""
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            name, _, folder = volume.rpartition(":")
            assert not name or name in compose["volumes"]
            assert f" {folder}" in "".join(re.findall(r"mkdir -p .*", dockerfile_of(service).read_text()))


@EVERY_DOCKERFILE
def test_images_are_built_alike(dockerfile: Path) -> None:
    """One base by build argument, packages by hash, a user that is not root, and a health check."""
    text = dockerfile.read_text(encoding="utf-8")
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    assert ({"${BASE}"}, 1) == (bases, text.count("ARG BASE=debian:bookworm-slim\n"))
    assert all("--require-hashes" in line for line in re.findall(r"pip install .*-r .*", text))
    assert "\nUSER loyalty\n" in text.rpartition("\nFROM ")[2]
    assert "\nHEALTHCHECK " in text


@EVERY_DOCKERFILE
def test_what_is_copied_is_there(dockerfile: Path) -> None:
    """Every source of a COPY exists and passes .dockerignore, or comes from another stage that makes it."""
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE):
        *sources, _ = [word for word in line.split() if not word.startswith("--")]
        assert all((ROOT / source).exists() and source.split("/")[0] in allowed for source in sources)


def test_the_images_that_need_jars_share_a_stage() -> None:
    """The stage is the same text in both, so that the builder makes it once."""
    texts = [(ROOT / "infra" / "docker" / f"{name}.Dockerfile").read_text() for name in ("kafka", "pipeline")]
    assert 1 == len({text.partition("AS build\n")[2].partition("\nFROM ")[0] for text in texts})


@pytest.fixture
def served() -> Iterator[str]:
    """The URL of a server that answers / with two lines and everything else with 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.end_headers()
            self.wfile.write(b"# HELP ready 1\nready 1.0\n")

        def log_message(self, *_: object) -> None:
            """Nothing to stderr."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_health_is_an_answer_with_the_text(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Success and a line that begins with the text; no answer, another status or another text is unhealthy."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert is_healthy(f"{served}/")
    assert is_healthy(f"{served}/", "ready 1")
    assert not is_healthy(f"{served}/", "ready 0")
    assert not is_healthy(f"{served}/", "HELP")
    assert not is_healthy(f"{served}/missing")
    assert not is_healthy("http://127.0.0.1:1/")
