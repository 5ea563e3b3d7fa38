"""The jars of Spark's connectors and of the Kafka broker. Standard library only: the set-up runs this."""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / "var" / "jars"
LOCK = ROOT / "infra" / "jars.sha256"
CONFIGURATIONS = ("spark", "kafka")
"""The configurations of infra/ivy.xml that everybody needs; each is one folder of jars and one class path."""

_IVY_FILE = ROOT / "infra" / "ivy.xml"
_IVY_CACHE = ROOT / "var" / "ivy"


class JarsError(RuntimeError):
    """The jars could not be resolved, or are not those of the lock file."""


def folder(configuration: str) -> Path:
    """Where the jars of a configuration are."""
    return JARS / configuration


def class_path(configuration: str) -> str:
    """All jars of a configuration, as java's ``-cp`` takes them."""
    return f"{folder(configuration)}/*"


def checksums(directory: Path) -> dict[str, str]:
    """SHA-256 of each jar below a directory, by its path there (``spark/name.jar``)."""
    return {
        jar.relative_to(directory).as_posix(): hashlib.sha256(jar.read_bytes()).hexdigest()
        for jar in sorted(directory.glob("*/*.jar"))
    }


def read_lock(path: Path = LOCK) -> dict[str, str]:
    """The checksums that ``make lock`` wrote, in the format of ``sha256sum``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: checksum for checksum, name in (line.split(maxsplit=1) for line in lines)}


def write_lock(path: Path = LOCK, directory: Path = JARS) -> None:
    """Accept the jars that are there as the right ones."""
    lines = [f"{checksum}  {name}\n" for name, checksum in checksums(directory).items()]
    path.write_text("".join(lines), encoding="utf-8")


def differences(expected: dict[str, str], directory: Path = JARS) -> list[str]:
    """What is wrong with the jars of a directory, one line each; empty when they are exactly the expected ones."""
    found = checksums(directory)
    return [
        f"{name}: {_difference(expected.get(name), found.get(name))}"
        for name in sorted({*expected, *found})
        if expected.get(name) != found.get(name)
    ]


def _difference(expected: str | None, found: str | None) -> str:
    if expected is None:
        return "not in the lock file"
    return "missing" if found is None else f"sha256 {found}, expected {expected}"


def ensure(
    java: Path,
    ivy: Path,
    directory: Path = JARS,
    lock: Path = LOCK,
    configurations: Sequence[str] = CONFIGURATIONS,
) -> bool:
    """Make a directory of jars what its lock file says; returns whether anything had to be done for it.

    The second attempt does without the cache, as a broken file may have come from there. Raises JarsError.
    """
    expected = read_lock(lock)
    if not differences(expected, directory):
        return False
    resolve(java, ivy, directory, configurations)
    if differences(expected, directory):
        shutil.rmtree(_IVY_CACHE, ignore_errors=True)
        resolve(java, ivy, directory, configurations)
    if wrong := differences(expected, directory):
        raise JarsError(f"resolved jars differ from {lock.relative_to(ROOT)}:\n  " + "\n  ".join(wrong))
    return True


def resolve(java: Path, ivy: Path, directory: Path = JARS, configurations: Sequence[str] = CONFIGURATIONS) -> None:
    """Fetch every jar of these configurations with Ivy, and put all of them in place at once."""
    incoming = directory.with_name(f"{directory.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    command = [str(java), "-jar", str(ivy), "-ivy", str(_IVY_FILE), "-cache", str(_IVY_CACHE), "-warn"]
    options = ["-types", "jar", "bundle", "-confs", *configurations]
    options += ["-retrieve", f"{incoming}/[conf]/[artifact]-[revision].[ext]"]
    run = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise JarsError(f"Ivy could not resolve the jars:\n{run.stdout}{run.stderr}".rstrip())
    shutil.rmtree(directory, ignore_errors=True)
    incoming.rename(directory)
