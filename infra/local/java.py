"""Finds a Java that Spark can use. Standard library only: the set-up runs this before anything is installed."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

SUPPORTED = (17, 21)
"""Feature releases that Spark 4.2 runs on and that every distribution packages."""

NEEDED_MODULE = "jdk.incubator.vector"
"""Spark 4.2 starts its JVM with ``--add-modules=jdk.incubator.vector``; some slimmed-down runtimes lack it."""

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
    """There is no suitable Java; the message says what to install."""

    def __init__(self) -> None:
        versions = " or ".join(str(version) for version in SUPPORTED)
        example = f"openjdk-{SUPPORTED[0]}-jre-headless"
        super().__init__(f"no Java {versions} found: install one (e.g. {example}) or set JAVA_HOME")


def find_java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The home of a suitable Java: ``JAVA_HOME`` first, then ``PATH``, then where systems keep theirs.

    An unsuitable ``JAVA_HOME`` is passed over, as machines often point it to another project's Java.
    Raises JavaNotFoundError.
    """
    for home in _candidates(environment):
        if is_suitable(home):
            return home
    raise JavaNotFoundError


def feature_release(version: str) -> int:
    """17 of ``17.0.15``, 21 of ``21-ea``, 8 of ``1.8.0_402``; 0 of what is no version."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers[1]) if numbers else 0


def is_suitable(home: Path) -> bool:
    """Whether the release is supported and has the module that Spark asks for."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return False
    facts = _release_file(home) or _asked(home / "bin" / "java")
    modules = facts.get("MODULES", "").split()
    return feature_release(facts.get("JAVA_VERSION", "")) in SUPPORTED and (not modules or NEEDED_MODULE in modules)


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java", path=environment.get("PATH", os.defpath)):
        home_of_link = Path(java).resolve().parent.parent
        yield home_of_link
        # A version manager's shim is a script that lies outside of the Java it starts.
        if not (home_of_link / "release").exists() and (asked := _asked(Path(java)).get("JAVA_HOME")):
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


def _asked(java: Path) -> dict[str, str]:
    """The same facts from the program itself, which takes a JVM's start."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return {}
    properties = dict(re.findall(r"^\s+(java\.\w+) = (.*)$", shown, re.MULTILINE))
    return {"JAVA_VERSION": properties.get("java.version", ""), "JAVA_HOME": properties.get("java.home", "")}
