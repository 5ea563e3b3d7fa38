"""Downloads the jars of Spark's connectors and of Kafka.

It uses only the standard library, because ``make setup`` runs it.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from infra.local import folders
from infra.local.folders import ROOT
from infra.local.java import find_java_home

_IVY_FILE = ROOT / "infra" / "ivy.xml"
_IVY_CACHE = folders.downloads() / "ivy"


class JarsError(RuntimeError):
    """The jars could not be downloaded, or differ from the lock file."""


@dataclass(frozen=True)
class JarSet:
    """The jars of some configurations of infra/ivy.xml. Each configuration is a folder of jars and a class path.

    Attributes:
        directory: contains the folders.
        lock: the file with the checksums that ``make lock`` wrote, in the format of ``sha256sum``.
    """

    directory: Path
    lock: Path
    configurations: Sequence[str]

    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each jar and archive, by its relative path (``spark/name.jar``)."""
        return {
            jar.relative_to(self.directory).as_posix(): hashlib.sha256(jar.read_bytes()).hexdigest()
            for jar in sorted(self.directory.glob("*/*"))
            if jar.suffix in {".jar", ".gz"}
        }

    def locked(self) -> dict[str, str]:
        """The checksums in the lock file."""
        lines = self.lock.read_text(encoding="utf-8").splitlines()
        return {name: checksum for checksum, name in (line.split(maxsplit=1) for line in lines)}

    def write_lock(self) -> None:
        """Write the checksums of the current jars into the lock file."""
        lines = [f"{checksum}  {name}\n" for name, checksum in self.checksums().items()]
        self.lock.write_text("".join(lines), encoding="utf-8")

    def differences(self) -> list[str]:
        """The differences between the jars and the lock file, one line for each jar."""
        expected, found = self.locked(), self.checksums()
        return [
            f"{name}: {_difference(expected.get(name), found.get(name))}"
            for name in sorted({*expected, *found})
            if expected.get(name) != found.get(name)
        ]

    def ensure(self, java: Path, ivy: Path) -> bool:
        """Download the jars if they differ from the lock file. Returns whether it has downloaded them.

        If the first attempt gives wrong files, a second attempt does not use the cache, which may contain a broken
        file. Raises JarsError.
        """
        if not self.differences():
            return False
        self.download(java, ivy)
        if self.differences():
            shutil.rmtree(_IVY_CACHE, ignore_errors=True)
            self.download(java, ivy)
        if wrong := self.differences():
            raise JarsError(f"the downloaded jars differ from {self.lock.relative_to(ROOT)}:\n  " + "\n  ".join(wrong))
        return True

    def download(self, java: Path, ivy: Path) -> None:
        """Download all jars with Ivy, and then replace the directory in one step. Raises JarsError."""
        incoming = self.directory.with_name(f"{self.directory.name}.incoming")
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(incoming, ignore_errors=True)
        command = [str(java), *proxy_options(), "-jar", str(ivy)]
        options = ["-ivy", str(_IVY_FILE), "-cache", str(_IVY_CACHE), "-warn"]
        options += ["-types", "jar", "bundle", "tar.gz", "-confs", *self.configurations]
        options += ["-retrieve", f"{incoming}/[conf]/[artifact]-[revision].[ext]"]
        run = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise JarsError(f"Ivy could not download the jars:\n{run.stdout}{run.stderr}".rstrip())
        shutil.rmtree(self.directory, ignore_errors=True)
        incoming.rename(self.directory)


STACK = JarSet(folders.downloads() / "jars", ROOT / "infra" / "jars.sha256", ("spark", "kafka"))
"""The jars that every machine needs."""

S3 = JarSet(folders.downloads() / "s3" / "jars", ROOT / "infra" / "s3-jars.sha256", ("s3", "s3proxy"))
"""Jars for an export to S3 and its test: Spark's class path with S3, and an S3 server."""

REGISTRY = JarSet(folders.downloads() / "registry" / "archives", ROOT / "infra" / "registry.sha256", ("registry",))
"""Jars for the tests with a Schema Registry: Apicurio Registry."""

UNPACKED_REGISTRY = REGISTRY.directory.with_name("unpacked")


def folder(configuration: str) -> Path:
    """The folder with the jars of a configuration of STACK."""
    return STACK.directory / configuration


def class_path(configuration: str) -> str:
    """All jars of a configuration of STACK, for ``java -cp``."""
    return f"{folder(configuration)}/*"


def ivy_jar() -> Path:
    """The jar of Ivy in the installed PySpark. Raises JarsError."""
    pyspark = find_spec("pyspark")
    found = sorted((Path(str(pyspark.origin)).parent / "jars").glob("ivy-*.jar")) if pyspark else []
    if not found:
        raise JarsError("PySpark is not installed, or has no jars: install retail-loyalty[stack]")
    return found[-1]


def _difference(expected: str | None, found: str | None) -> str:
    if expected is None:
        return "not in the lock file"
    return "missing" if found is None else f"sha256 {found}, expected {expected}"


def ensure_registry(java: Path, ivy: Path) -> None:
    """Download and unpack Apicurio Registry if it is missing. Raises JarsError."""
    if not REGISTRY.ensure(java, ivy) and UNPACKED_REGISTRY.is_dir():
        return
    (archive,) = REGISTRY.directory.glob("*/*.tar.gz")
    incoming = UNPACKED_REGISTRY.with_name("unpacked.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    shutil.unpack_archive(archive, incoming)
    shutil.rmtree(UNPACKED_REGISTRY, ignore_errors=True)
    incoming.rename(UNPACKED_REGISTRY)


def provide(say: Callable[[str], object]) -> None:
    """Download the jars of an installed package at their first use. In a checkout ``make setup`` does this.

    Raises JarsError and JavaNotFoundError.
    """
    if not folders.IS_CHECKOUT and STACK.differences():
        say(f"Downloading the jars of Spark's connectors and of Kafka to {STACK.directory}.")
        STACK.ensure(find_java_home() / "bin" / "java", ivy_jar())


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
