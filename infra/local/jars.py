"""Downloads the jars of Spark's connectors and of Kafka.

It uses only the standard library, because ``make setup`` runs it.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from infra.local import folders
from infra.local.java import find_java_home

ROOT = folders.PACKAGES
JARS = folders.downloads() / "jars"
LOCK = ROOT / "infra" / "jars.sha256"
CONFIGURATIONS = ("spark", "kafka")
"""The configurations of infra/ivy.xml that every machine needs. Each one is a folder of jars and a class path."""

S3 = folders.downloads() / "s3" / "jars"
S3_LOCK = ROOT / "infra" / "s3-jars.sha256"
S3_CONFIGURATIONS = ("s3", "s3proxy")
"""Jars for an export to S3 and its test: Spark's class path with S3, and an S3 server."""

REGISTRY = folders.downloads() / "registry" / "archives"
REGISTRY_LOCK = ROOT / "infra" / "registry.sha256"
REGISTRY_CONFIGURATIONS = ("registry",)
"""Jars for the tests with a Schema Registry: Apicurio Registry."""

UNPACKED_REGISTRY = REGISTRY.with_name("unpacked")

_IVY_FILE = ROOT / "infra" / "ivy.xml"
_IVY_CACHE = folders.downloads() / "ivy"


class JarsError(RuntimeError):
    """The jars could not be downloaded, or differ from the lock file."""


def folder(configuration: str) -> Path:
    """The folder with the jars of a configuration."""
    return JARS / configuration


def class_path(configuration: str) -> str:
    """All jars of a configuration, for ``java -cp``."""
    return f"{folder(configuration)}/*"


def ivy_jar() -> Path:
    """The jar of Ivy in the installed PySpark. Raises JarsError."""
    pyspark = find_spec("pyspark")
    found = sorted((Path(str(pyspark.origin)).parent / "jars").glob("ivy-*.jar")) if pyspark else []
    if not found:
        raise JarsError("PySpark is not installed, or has no jars: install retail-loyalty[stack]")
    return found[-1]


def checksums(directory: Path) -> dict[str, str]:
    """The SHA-256 of each jar and archive in a directory, by its relative path (``spark/name.jar``)."""
    return {
        jar.relative_to(directory).as_posix(): hashlib.sha256(jar.read_bytes()).hexdigest()
        for jar in sorted(directory.glob("*/*"))
        if jar.suffix in {".jar", ".gz"}
    }


def read_lock(path: Path = LOCK) -> dict[str, str]:
    """The checksums that ``make lock`` wrote, in the format of ``sha256sum``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: checksum for checksum, name in (line.split(maxsplit=1) for line in lines)}


def write_lock(path: Path = LOCK, directory: Path = JARS) -> None:
    """Write the checksums of the current jars into the lock file."""
    lines = [f"{checksum}  {name}\n" for name, checksum in checksums(directory).items()]
    path.write_text("".join(lines), encoding="utf-8")


def differences(expected: dict[str, str], directory: Path = JARS) -> list[str]:
    """The differences between the jars of a directory and the expected jars, one line for each jar."""
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
    """Download the jars if the directory differs from its lock file. Returns whether it has downloaded them.

    If the first attempt gives wrong files, a second attempt does not use the cache, which may contain a broken file.
    Raises JarsError.
    """
    expected = read_lock(lock)
    if not differences(expected, directory):
        return False
    resolve(java, ivy, directory, configurations)
    if differences(expected, directory):
        shutil.rmtree(_IVY_CACHE, ignore_errors=True)
        resolve(java, ivy, directory, configurations)
    if wrong := differences(expected, directory):
        raise JarsError(f"the downloaded jars differ from {lock.relative_to(ROOT)}:\n  " + "\n  ".join(wrong))
    return True


def ensure_registry(java: Path, ivy: Path) -> None:
    """Download and unpack Apicurio Registry if it is missing. Raises JarsError."""
    if not ensure(java, ivy, REGISTRY, REGISTRY_LOCK, REGISTRY_CONFIGURATIONS) and UNPACKED_REGISTRY.is_dir():
        return
    (archive,) = REGISTRY.glob("*/*.tar.gz")
    incoming = UNPACKED_REGISTRY.with_name("unpacked.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    shutil.unpack_archive(archive, incoming)
    shutil.rmtree(UNPACKED_REGISTRY, ignore_errors=True)
    incoming.rename(UNPACKED_REGISTRY)


def provide(say: Callable[[str], object]) -> None:
    """Download the jars of an installed package at their first use. In a checkout ``make setup`` does this.

    Raises JarsError and JavaNotFoundError.
    """
    if not folders.IS_CHECKOUT and differences(read_lock()):
        say(f"Downloading the jars of Spark's connectors and of Kafka to {JARS}.")
        ensure(find_java_home() / "bin" / "java", ivy_jar())


def proxy_options() -> list[str]:
    """HTTP_PROXY, HTTPS_PROXY and NO_PROXY as options of Java, which does not read these variables."""
    variables = getproxies_environment()
    options = []
    for scheme in ("http", "https"):
        if proxy := variables.get(scheme):
            address = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            port = address.port or (443 if address.scheme == "https" else 80)
            options += [f"-D{scheme}.proxyHost={address.hostname}", f"-D{scheme}.proxyPort={port}"]
    names = [name.strip() for name in variables.get("no", "").split(",") if name.strip()]
    if options and names:
        # This option applies to both schemes.
        patterns = (each for name in names for each in ([f"*{name}"] if name[0] == "." else [name, f"*.{name}"]))
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(patterns)}")
    return options


def resolve(java: Path, ivy: Path, directory: Path = JARS, configurations: Sequence[str] = CONFIGURATIONS) -> None:
    """Download all jars of these configurations with Ivy, and then replace the directory in one step."""
    incoming = directory.with_name(f"{directory.name}.incoming")
    directory.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(incoming, ignore_errors=True)
    command = [str(java), *proxy_options(), "-jar", str(ivy)]
    options = ["-ivy", str(_IVY_FILE), "-cache", str(_IVY_CACHE), "-warn"]
    options += ["-types", "jar", "bundle", "tar.gz", "-confs", *configurations]
    options += ["-retrieve", f"{incoming}/[conf]/[artifact]-[revision].[ext]"]
    run = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise JarsError(f"Ivy could not download the jars:\n{run.stdout}{run.stderr}".rstrip())
    shutil.rmtree(directory, ignore_errors=True)
    incoming.rename(directory)
