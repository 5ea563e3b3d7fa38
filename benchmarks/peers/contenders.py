"""The peers and the commands that start them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import setup
from benchmarks.peers.runs import Command
from benchmarks.peers.workload import FAN_OUT, LOYALTY
from infra.local.folders import ROOT
from infra.local.ports import HOST, free_port
from services.settings import Settings

SCHEMAS = ROOT / "schemas"
_PYTHON_APPS = setup.HERE / "python_apps"
_QUIX_INSTANCES = 2
"""One instance for each of two cores, because a Python process uses only one core."""

_GUARANTEES = {"at-least-once": "at_least_once", "exactly-once v2": "exactly_once_v2"}

Commands = Callable[[Settings, Path, str], list[Command]]
"""Takes the settings of the broker, the folder and the name of the run. Returns the commands of the processes."""


@dataclass(frozen=True)
class Peer:
    """An alternative implementation of a branch."""

    name: str
    branch: str
    commands: Commands


def kafka_streams(branch: str, guarantee: str, *, drop_repeats: bool = False, port: int | None = None) -> Commands:
    def commands(settings: Settings, directory: Path, name: str) -> list[Command]:
        properties = {
            "application.id": name,
            "bootstrap.servers": settings.kafka_bootstrap_servers,
            "state.dir": str(directory / "state"),
            "processing.guarantee": guarantee,
            "schemas": str(SCHEMAS),
            "prefix": settings.topic_prefix,
            branch: "true",
            "drop-repeats": str(drop_repeats).lower(),
            # Recommended for small responses. Without it, the server waits for more data before it sends them.
            "sun.net.httpserver.nodelay": "true",
            "org.slf4j.simpleLogger.defaultLogLevel": "warn",
            **({"http.port": str(port)} if port else {}),
        }
        options = [f"-D{key}={value}" for key, value in properties.items()]
        return [Command([str(setup.java()), *options, "-cp", setup.java_class_path(), "App"])]

    return commands


def quix_streams(settings: Settings, directory: Path, name: str) -> list[Command]:
    program = [str(setup.python()), str(_PYTHON_APPS / "quix_app.py"), settings.kafka_bootstrap_servers, name]
    return [
        Command([*program, settings.topic_prefix, str(directory / f"state-{number}")], _python_environment())
        for number in range(_QUIX_INSTANCES)
    ]


def faust(port: int | None = None) -> Commands:
    def commands(settings: Settings, directory: Path, name: str) -> list[Command]:
        environment = _python_environment() | {
            "PEER_BROKER": settings.kafka_bootstrap_servers,
            "PEER_GROUP": name,
            "PEER_PREFIX": settings.topic_prefix,
        }
        program = [str(setup.python()), str(_PYTHON_APPS / "faust_app.py")]
        options = ["--datadir", str(directory / "state"), "--loop", "uvloop", "worker", "--loglevel", "warn"]
        options += ["--web-host", HOST, "--web-bind", HOST, "--web-port", str(port or free_port())]
        # A second instance would join later and count the first records again, so its output would be wrong.
        return [Command([*program, *options], environment)]

    return commands


def _python_environment() -> dict[str, str]:
    return {"PEER_SCHEMAS": str(SCHEMAS), "PYTHONUNBUFFERED": "1"}


def peers(*, drop_repeats: bool) -> Sequence[Peer]:
    """All peers. With ``drop_repeats`` only those with a documented way to drop duplicates."""
    streams = [
        Peer(f"Kafka Streams {name}", branch, kafka_streams(branch, guarantee, drop_repeats=drop_repeats))
        for branch in (FAN_OUT, LOYALTY)
        for name, guarantee in _GUARANTEES.items()
    ]
    if drop_repeats:
        return streams
    return [*streams, Peer("Quix Streams", LOYALTY, quix_streams), Peer("Faust", LOYALTY, faust())]
