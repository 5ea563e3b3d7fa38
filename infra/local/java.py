"""Finds a Java for Spark. It uses only the standard library, because ``make setup`` runs it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

SUPPORTED = (17, 21)
"""Feature releases that Spark 4.2 supports and that all distributions package."""

NEEDED_MODULE = "jdk.incubator.vector"
"""Spark 4.2 starts its JVM with ``--add-modules=jdk.incubator.vector``. Some small runtimes lack this module."""

_HOMES = (
    "/usr/lib/jvm/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
)


class JavaNotFoundError(RuntimeError):
    """There is no suitable Java. The message names the package to install."""

    def __init__(self) -> None:
        versions = " or ".join(str(version) for version in SUPPORTED)
        example = f"openjdk-{SUPPORTED[0]}-jre-headless"
        super().__init__(f"no Java {versions} found: install one (for example {example}), or set JAVA_HOME")


def find_java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The home of a suitable Java: from ``JAVA_HOME``, from ``PATH``, or from the usual folders.

    An unsuitable ``JAVA_HOME`` is ignored, because it often belongs to another project. Raises JavaNotFoundError.
    """
    for home in _candidates(environment):
        if is_suitable(home):
            return home
    raise JavaNotFoundError


def feature_release(version: str) -> int:
    """The feature release of a version: 17 of ``17.0.15``, 21 of ``21-ea``, 8 of ``1.8.0_402``. 0 for other texts."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers[1]) if numbers else 0


def is_suitable(home: Path) -> bool:
    """Whether the release is supported and has the module that Spark needs."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return False
    properties = _release_file(home) or _reported_by(home / "bin" / "java")
    modules = properties.get("MODULES", "").split()
    return feature_release(properties.get("JAVA_VERSION", "")) in SUPPORTED and (
        not modules or NEEDED_MODULE in modules
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java", path=environment.get("PATH", os.defpath)):
        home_of_link = Path(java).resolve().parent.parent
        yield home_of_link
        # The ``java`` of a version manager can be a script outside of the home of the Java that it starts.
        if not (home_of_link / "release").exists() and (asked := _reported_by(Path(java)).get("JAVA_HOME")):
            yield Path(asked)
    for pattern in _HOMES:
        root, _, rest = str(Path(pattern).expanduser()).partition("/")
        yield from sorted(Path(root or "/").glob(rest))


def _release_file(home: Path) -> dict[str, str]:
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE))


def _reported_by(java: Path) -> dict[str, str]:
    """The same properties from ``java`` itself. This is slower, because it starts a JVM."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return {}
    properties = dict(re.findall(r"^\s+(java\.\w+) = (.*)$", output, re.MULTILINE))
    return {"JAVA_VERSION": properties.get("java.version", ""), "JAVA_HOME": properties.get("java.home", "")}
