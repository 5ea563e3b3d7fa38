"""A Compose project: the containers that one run of the compose files starts."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from infra.local.folders import ROOT

COMPOSE_FILE = ROOT / "docker-compose.yml"
SECURED_FILE = ROOT / "docker-compose.secured.yml"

_LOG_LINES = 20
_LABEL = "com.docker.compose"


class ContainersError(RuntimeError):
    """A command of the engine or of Compose failed. The message has the last lines of its output."""


@dataclass(frozen=True)
class Container:
    """The current state of one container.

    Attributes:
        state: created, running, restarting, exited …
        restarts: the number of restarts by the engine.
    """

    id: str
    service: str
    number: int
    state: str
    restarts: int

    @property
    def is_up(self) -> bool:
        return self.state == "running"


@dataclass(frozen=True)
class ComposeProject:
    """One run of the compose files under its own name.

    Attributes:
        environment: the variables for the compose files. LOYALTY_ and COMPOSE_ variables of the caller are ignored.
        profiles: optional groups of services.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    profiles: Sequence[str] = ()
    files: Sequence[Path] = (COMPOSE_FILE,)

    def build(self, *services: str) -> None:
        """Build the images. Unchanged parts come from the cache."""
        self.compose("build", *services)

    def up(self, *services: str, scale: Mapping[str, int] | None = None) -> None:
        """Start the services that do not run, each one after its dependencies. Running replicas stay."""
        scales = [part for service, number in (scale or {}).items() for part in ("--scale", f"{service}={number}")]
        self.compose("up", "--detach", "--no-recreate", *scales, *services)

    def down(self) -> None:
        """Stop and remove all containers and data of the project."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "10")

    def containers(self, *services: str) -> list[Container]:
        """The containers of these services (default: all services), sorted by service and number."""
        filters = ["--filter", f"label={_LABEL}.project={self.name}"]
        if not (ids := engine("ps", "--all", "--quiet", "--no-trunc", *filters).split()):
            return []
        found = sorted(map(_container, json.loads(engine("inspect", *ids))), key=lambda c: (c.service, c.number))
        return [container for container in found if not services or container.service in services]

    def container(self, service: str) -> Container:
        """The first container of a service. Raises ContainersError if there is none."""
        for container in self.containers(service):
            return container
        raise ContainersError(f"{self.name} has no container of {service}")

    def url(self, container: Container, port: int) -> str:
        """The URL of a published port of a container."""
        return f"http://{engine('port', container.id, str(port)).split()[0]}"

    def compose(self, *arguments: str) -> str:
        """Run a Compose command on this project. Raises ContainersError."""
        files = [part for path in self.files for part in ("--file", str(path))]
        profiles = [part for profile in self.profiles for part in ("--profile", profile)]
        command = [*compose_command(), "--project-name", self.name, *files, *profiles, *arguments]
        # The variables and the file .env of the caller must not change the Compose files or the images of this project.
        own = ("LOYALTY_", "COMPOSE_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        return _run(command, {**inherited, "IMAGE_TAG": "latest", **self.environment})


def _container(facts: dict[str, Any]) -> Container:
    labels, state = facts["Config"]["Labels"], facts["State"]
    return Container(
        id=facts["Id"],
        service=labels[f"{_LABEL}.service"],
        number=int(labels[f"{_LABEL}.container-number"]),
        state=state["Status"],
        restarts=facts["RestartCount"],
    )


def log_of(container: Container, *options: str) -> str:
    """The standard output and error of a container."""
    command = ["docker", "logs", *options, container.id]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout


def last_lines(container: Container) -> str:
    """The end of the log of a container, for an error message."""
    lines = log_of(container, "--tail", str(_LOG_LINES)).splitlines()
    return "\n  ".join([f"The end of the log of {container.service} ({container.id[:12]}):", *lines])


def engine(*arguments: str) -> str:
    """Run a docker command and return its output. Raises ContainersError."""
    return _run(["docker", *arguments], os.environ)


@cache
def compose_command() -> tuple[str, ...]:
    """Compose v2 if it is installed, otherwise docker-compose. Raises ContainersError."""
    if shutil.which("docker") is None:
        raise ContainersError("docker is not installed: install an engine (Debian: docker.io docker-compose)")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return "docker", "compose"
    if shutil.which("docker-compose") is None:
        raise ContainersError("Compose is not installed: install its plugin, or docker-compose 1.29")
    return ("docker-compose",)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        # In its own session the child does not receive Ctrl-C. This process ends it.
        run = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, start_new_session=True
        )
    except OSError as error:
        raise ContainersError(f"cannot run {command[0]}: {error}") from error
    if run.returncode != 0:
        output = (run.stdout + run.stderr).splitlines()[-_LOG_LINES:]
        raise ContainersError("\n  ".join([f"`{' '.join(command)}` ended with status {run.returncode}:", *output]))
    return run.stdout
