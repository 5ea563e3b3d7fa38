"""The components of the project and its images: Python packages of the lock files, jars, and scripts for browsers."""

import hashlib
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from infra import setup
from infra.local import folders, jars
from infra.local.folders import ROOT

PYPI, MAVEN, NPM = "PyPI", "Maven", "npm"
"""Ecosystems, as OSV names them (https://ossf.github.io/osv-schema/#defined-ecosystems)."""

# The Python of the images (Debian 12).
_ENVIRONMENT = {"python_version": "3.11", "python_full_version": "3.11.2", "sys_platform": "linux"}
_ENVIRONMENT |= {"platform_system": "Linux", "os_name": "posix", "implementation_name": "cpython"}
_ENVIRONMENT |= {"platform_python_implementation": "CPython", "platform_machine": "x86_64"}

_CONSOLE = ROOT / "api" / "console" / "static"
_SCRIPTS = {
    "htmx.org": (_CONSOLE / "htmx.min.js", r'version:"([\d.]+)"'),
    "swagger-ui-dist": (files("fastapi_offline") / "static" / "swagger-ui-bundle.js", r'PACKAGE_VERSION:"([\d.]+)"'),
    "uplot": (_CONSOLE / "uPlot.iife.min.js", r"\(v([\d.]+)\)"),
}
"""The scripts that the API gives to browsers, by their package in npm, and where they have their version."""

CONSOLE_SCRIPTS, DOCUMENTATION_SCRIPTS = ("htmx.org", "uplot"), ("swagger-ui-dist",)

# The cache has a folder for each group, which has a folder for each artifact.
_IVY_CACHE = folders.downloads() / "ivy"


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """A package or jar of one version.

    Attributes:
        name: the name in the ecosystem: ``requests``, or ``org.apache.kafka:kafka-clients``. If the group of a jar is
            not known, only the name of the artifact.
        sha256: of a jar or script, in hexadecimal digits; empty for a package, because its file differs between
            platforms.
    """

    ecosystem: str
    name: str
    version: str
    sha256: str = ""


def packages(lock: str) -> list[Component]:
    """The packages of ``requirements/{lock}.txt`` that an image installs. This machine does not change the result."""
    lines = (setup.REQUIREMENTS / f"{lock}.txt").read_text(encoding="utf-8").splitlines()
    pinned = (Requirement(line.removesuffix("\\").strip()) for line in lines if re.match(r"[A-Za-z0-9]", line))
    return [
        Component(PYPI, canonicalize_name(each.name), str(each.specifier).removeprefix("=="))
        for each in pinned
        if each.marker is None or each.marker.evaluate(_ENVIRONMENT)
    ]


def locked_jars(configuration: str) -> list[Component]:
    """The jars of one class path of infra/ivy.xml. Raises JarsError if they differ from the lock file."""
    if wrong := jars.STACK.differences():
        raise jars.JarsError("the jars differ from infra/jars.sha256; run make setup:\n  " + "\n  ".join(wrong))
    return [*map(_jar, sorted(jars.folder(configuration).glob("*.jar")))]


def spark_jars() -> list[Component]:
    """The jars inside of the installed package pyspark."""
    return [*map(_jar, sorted(jars.ivy_jar().parent.glob("*.jar")))]


def scripts(names: Iterable[str]) -> Iterator[Component]:
    """The scripts for browsers with these names."""
    for name in names:
        file, version = _SCRIPTS[name]
        content = file.read_bytes()
        yield Component(NPM, name, re.findall(version, content.decode())[0], hashlib.sha256(content).hexdigest())


@cache  # the jars of Spark are in the SBOM of an image and in the lock
def _jar(file: Path) -> Component:
    found = re.fullmatch(r"(.+?)-(\d.*)", file.stem)
    artifact, version = found.groups() if found else (file.stem, "")
    groups = {(group, name) for group, name in _declared(file) if file.stem.startswith(f"{name}-")}
    groups = groups or {(folder.parent.name, artifact) for folder in _IVY_CACHE.glob(f"*/{artifact}")}
    name = artifact
    if len(groups) == 1:
        ((group, artifact),) = groups
        name, version = f"{group}:{artifact}", file.stem.removeprefix(f"{artifact}-")
    return Component(MAVEN, name, version, hashlib.sha256(file.read_bytes()).hexdigest())


def _declared(file: Path) -> Iterator[tuple[str, str]]:
    """Group and artifact of each Maven project in the jar. A jar that contains other jars has several."""
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if found := re.fullmatch(r"META-INF/maven/([^/]+)/([^/]+)/pom\.properties", name):
                yield found[1], found[2]
