"""The SBOM of each image in CycloneDX: the components that its Dockerfile installs."""

import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component as BomComponent
from cyclonedx.model.component import ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from infra.local.folders import ROOT
from infra.supply_chain import components
from infra.supply_chain.components import CONSOLE_SCRIPTS, DOCUMENTATION_SCRIPTS, MAVEN, NPM, PYPI, Component

_COMPOSE = ROOT / "docker-compose.yml"


@cache
def images() -> dict[str, tuple[Path, str | None]]:
    """The images that docker-compose.yml builds, by name: the Dockerfile, and the target (None: the last stage)."""
    services: Mapping[str, Any] = yaml.safe_load(_COMPOSE.read_text(encoding="utf-8"))["services"]
    built = (service for service in services.values() if "build" in service)
    return {
        each["image"].partition(":")[0]: (ROOT / each["build"]["dockerfile"], each["build"].get("target"))
        for each in built
    }


def sbom(image: str, version: str) -> str:
    """The SBOM of an image as JSON. If SOURCE_DATE_EPOCH is set, it is the timestamp, so that two runs are identical.

    The versions of Debian packages are missing, because they are not known before the build.
    """
    dockerfile, target = images()[image]
    text = dockerfile.read_text(encoding="utf-8")
    root = BomComponent(name=image, version=version, type=ComponentType.CONTAINER, bom_ref=image)
    parts = sorted([*_base(text), *map(_described, _installed(text, target))])
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    bom = Bom(
        components=parts,
        # The same content has the same serial number.
        serial_number=uuid.uuid5(
            uuid.NAMESPACE_URL, "\n".join([image, version, *(str(part.bom_ref) for part in parts)])
        ),
        metadata=BomMetaData(component=root, timestamp=datetime.fromtimestamp(epoch, UTC)),
    )
    bom.register_dependency(root, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _stages(text: str, target: str | None) -> str:
    """The Dockerfile text of the target stage, and of the stages that it is based on."""
    stages: dict[str, tuple[str, str]] = {}
    for part in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        base, _, name = head.partition(" AS ")
        stages[name] = base, body
    found, stage = "", target or ""
    while stage in stages:
        stage, body = stages[stage]
        found = body + found
    return found


def _base(text: str) -> Iterator[BomComponent]:
    for name, tag in re.findall(r"^ARG BASE=(\w+):(\S+)$", text, re.MULTILINE):
        purl = PackageURL("docker", None, name, tag)
        yield BomComponent(name=name, version=tag, type=ComponentType.CONTAINER, purl=purl, bom_ref=str(purl))


def _installed(text: str, target: str | None) -> Iterator[Component]:
    own = _stages(text, target)
    for packages in re.findall(r"--no-install-recommends((?:\s+\\?\s*[^\s&\\]+)+)", own):
        for name in packages.replace("\\", " ").split():
            if re.fullmatch(r"[a-z][a-z0-9.+-]*", name):  # others are options
                yield Component("Debian", name, "")
    if "/app/.venv /app/.venv" in own:
        # The Dockerfile uninstalls the packages of build.txt again.
        (lock,) = re.findall(r"for file in build (\w+); do", text)
        yield from components.packages(lock)
        yield from components.spark_jars() if lock == "pipeline" else components.scripts(DOCUMENTATION_SCRIPTS)
    if "COPY api api" in own:
        yield from components.scripts(CONSOLE_SCRIPTS)
    for configuration in re.findall(r"^COPY --from=jars /app/var/jars/(\w+) ", own, re.MULTILINE):
        yield from components.locked_jars(configuration)


def _described(each: Component) -> BomComponent:
    group, _, name = each.name.rpartition(":")
    if each.ecosystem == PYPI:
        purl = PackageURL("pypi", None, name, each.version)
    elif each.ecosystem == MAVEN:
        purl = PackageURL("maven" if group else "generic", group or None, name, each.version)
    elif each.ecosystem == NPM:
        purl = PackageURL("npm", None, name, each.version)
    else:
        purl = PackageURL("deb", "debian", name, qualifiers={"distro": "bookworm"})
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=each.sha256)] if each.sha256 else []
    # A jar of the lock can have the same name and version as one in Spark's folder, so the reference has the checksum.
    reference = f"{purl}#{each.sha256[:12]}" if each.sha256 else str(purl)
    return BomComponent(
        name=name,
        group=group or None,
        version=each.version or None,
        type=ComponentType.LIBRARY,
        purl=purl,
        hashes=hashes,
        bom_ref=reference,
    )
