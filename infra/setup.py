"""``make setup`` installs everything that the project needs, from pinned sources with checksums.

It uses only the standard library, and runs with any Python from 3.11 on. If everything is installed, it does nothing.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from infra.local import jars
from infra.local.folders import ROOT
from infra.local.java import SUPPORTED, JavaNotFoundError, find_java_home

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
PACKAGES = VENV / ".packages"
"""Exists after all packages were installed. Without it, all are installed again, because some can be incomplete."""
PROMTOOL = VENV / "bin" / "promtool"
REQUIREMENTS = ROOT / "requirements"
# Without build isolation, pip builds with the pinned tools of requirements/build.txt and downloads no others.
PIP = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-build-isolation"]

# The Python of .venv runs this. After an upgrade of the system it can have another version, which does not see pip.
_CHECK = """
import sys, pip
version = "{}.{}".format(*sys.version_info)
sys.exit(sys.version_info < (3, 11) or sys.argv[1] not in ("", version))
"""


class SetupError(RuntimeError):
    """The setup failed. The message is one line that says what to do."""


def main(arguments: Sequence[str]) -> int:
    """Install everything. Returns the exit status.

    Args:
        arguments: at most one word. ``lock-jars`` also writes the checksums of the downloaded jars.
            ``object-store-jars`` also downloads the jars for an export to S3 and its test. ``test-tools`` only installs
            programs that some tests need; without them these tests are skipped.
    """
    if "test-tools" in arguments:
        install_test_tools()
        return 0
    try:
        create_environment()
        install_packages()
        java = java_home() / "bin" / "java"
        if "lock-jars" in arguments:
            for each in (jars.STACK, jars.S3, jars.REGISTRY):
                each.download(java, ivy_jar())
                each.write_lock()
        elif "object-store-jars" in arguments:
            if jars.S3.differences():
                say(f"Downloading Hadoop's connector of S3, and S3Proxy for the test, to {jars.S3.directory}")
                jars.S3.ensure(java, ivy_jar())
        else:
            if jars.STACK.differences():
                say("Downloading the jars of Spark's connectors and of Kafka")
                jars.STACK.ensure(java, ivy_jar())
            make_class_archive(java)
    except (SetupError, JavaNotFoundError, jars.JarsError) as error:
        print(f"setup failed: {error}", file=sys.stderr)
        return 1
    return 0


def create_environment() -> None:
    """Create the virtual environment .venv. Keep a working one, because other processes may use it.

    Only ``make setup PYTHON=…`` with another version replaces a working environment.
    """
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    if works(this if os.environ.get("PYTHON") else None):
        return
    say(f"Creating .venv with Python {this}")
    # The command below deletes the interpreter of an incomplete .venv, so another one must create the new .venv.
    base = getattr(sys, "_base_executable", sys.executable)
    if not succeeds([base, "-c", "import ensurepip, venv"]):
        apt_install([f"python{this}-venv"], otherwise=f"install the venv module of Python {this} (python{this}-venv)")
    run([base, "-m", "venv", "--clear", str(VENV)])


def works(version: str | None) -> bool:
    """Whether .venv has pip, was created at this path, and has this version of Python (None: any from 3.11 on)."""
    # The programs of a moved or copied environment use the code at the old path. venv writes the path into this file.
    file = VENV / "pyvenv.cfg"
    made = re.findall("^command = .*", file.read_text(encoding="utf-8"), re.MULTILINE) if file.exists() else []
    # An installation of pip writes the list of its files last.
    lists = VENV.glob("lib/python*/site-packages/pip-*.dist-info/RECORD")
    return (
        any(lists) and all(map(_names_this_environment, made)) and succeeds([str(PYTHON), "-Ic", _CHECK, version or ""])
    )


def _names_this_environment(command: str) -> bool:
    """Whether this command of venv created this environment. Its path can contain a symbolic link."""
    path = Path("/" + command.partition(" -m venv ")[2].partition("/")[2])
    return path.exists() and path.samefile(VENV)


def install_packages() -> None:
    """Install the packages of requirements/all.txt with checked hashes, and the project itself in editable mode."""
    locked = REQUIREMENTS / "all.txt"
    # In a new environment, uv need not refresh its cache.
    again = UV.exists() and not PACKAGES.exists()
    run_once(PACKAGES, locked.read_bytes(), partial(install_locked, locked, again=again))
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    identity = repr([ROOT, project["project"], project["build-system"], project["tool"]["hatch"]]).encode()
    run_once(VENV / ".project", identity, lambda: run([*PIP, "--no-deps", "--no-index", "--editable", str(ROOT)]))


def install_locked(locked: Path, *, again: bool) -> None:
    """Install the packages of a file.

    Args:
        again: also install the packages that .venv already has. If Ctrl-C stops uv, half a package can be there.
    """
    say(f"Installing {locked.relative_to(ROOT)}")
    pip = [*PIP, *["--force-reinstall"] * again, "--use-pep517", "--require-hashes", "-r"]
    # pyspark is published only as source, so its build tools must be installed first.
    run([*pip, str(REQUIREMENTS / "build.txt")])
    uv = [str(UV), "pip", "install", "-q", "--python", str(PYTHON), "--no-build-isolation"]
    uv += ["--reinstall"] * again
    try:
        # uv is twice as fast as pip. But it does not read the configuration of pip, for example another index.
        run([*uv, "--compile-bytecode", "--require-hashes", "-r", str(locked)])
    except (SetupError, OSError):
        say("uv cannot install the packages, so pip does")
        run([*pip, str(locked)])


def run_once(stamp: Path, content: bytes, action: Callable[[], None]) -> None:
    """Run the action, unless the last run had the same content and succeeded. The file ``stamp`` remembers it."""
    fingerprint = hashlib.sha256(content).hexdigest()
    if stamp.exists() and stamp.read_text() == fingerprint:
        return
    stamp.unlink(missing_ok=True)
    action()
    stamp.write_text(fingerprint)


def java_home() -> Path:
    try:
        return find_java_home()
    except JavaNotFoundError as error:
        apt_install([f"openjdk-{version}-jre-headless" for version in SUPPORTED], otherwise=str(error))
        return find_java_home()


def install_test_tools() -> None:
    """Install Chromium, kcat, promtool and Apicurio Registry, if they are missing."""
    packages = {"chromium": "chromium", "chromedriver": "chromium-driver", "kcat": "kcat", "xxd": "xxd"}
    for program, package in packages.items():
        if not shutil.which(program):
            attempt(program, partial(apt_install, [package], f"install {package}"))
    if not find_promtool():
        attempt("promtool", unpack_promtool)
    attempt("Apicurio Registry", lambda: jars.ensure_registry(java_home() / "bin" / "java", ivy_jar()))


def attempt(tool: str, install: Callable[[], None]) -> None:
    """Install a tool. If this fails, say that tests are skipped."""
    try:
        install()
    except (SetupError, jars.JarsError, OSError) as error:
        say(f"No {tool}, so the tests that need it are skipped: {error}")


def find_promtool() -> str | None:
    """The path of the program that tests alerts, or None."""
    return shutil.which("promtool") or shutil.which(PROMTOOL)


def unpack_promtool() -> None:
    """Take promtool out of Debian's package prometheus. Installing the package would also start a server."""
    apt_get = updated_apt_get(otherwise="install promtool, a part of Prometheus")
    with TemporaryDirectory() as folder:
        say("Unpacking promtool")
        run([*apt_get, "-o", "APT::Sandbox::User=root", "download", "prometheus"], folder)
        run(["dpkg", "-x", *map(str, Path(folder).glob("*.deb")), folder])
        shutil.move(Path(folder, "usr", "bin", "promtool"), PROMTOOL)


def ivy_jar() -> Path:
    found = sorted(VENV.glob("lib/python*/site-packages/pyspark/jars/ivy-*.jar"))
    if not found:
        raise SetupError("the installed pyspark contains no Ivy: delete .venv and run `make setup` again")
    return found[-1]


def apt_install(packages: Sequence[str], otherwise: str) -> None:
    """Install the first available package with apt. Without apt, raises SetupError with the message ``otherwise``."""
    apt_get = updated_apt_get(otherwise)
    for package in packages:
        if succeeds(["apt-cache", "show", package]):
            say(f"Installing {package}")
            run([*apt_get, "install", "--no-install-recommends", "-y", package])
            return
    raise SetupError(otherwise)


def updated_apt_get(otherwise: str) -> list[str]:
    """Update the lists of apt-get. Returns the beginning of its commands.

    Without apt, raises SetupError with the message ``otherwise``.
    """
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if not shutil.which("apt-get") or (root and not succeeds([*root, "true"])):
        raise SetupError(otherwise)
    apt_get = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    run([*apt_get, "update"])
    return apt_get


def succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run(command: Sequence[str], folder: str | None = None) -> None:
    if (status := subprocess.run(command, check=False, stdout=sys.stderr, cwd=folder).returncode) != 0:
        raise SetupError(f"`{' '.join(command)}` ended with status {status}. Its output is above")


def make_class_archive(java: Path) -> None:
    """Make the class archive of Spark once for these jars, this PySpark and this Java. Spark also works without it."""
    folder = jars.folder("spark")

    def make() -> None:
        say("Making an archive of Spark's classes, so that Spark starts faster")
        os.environ["JAVA_HOME"] = str(java.parents[1])
        run([str(PYTHON), "-m", "pipelines.runtime.make_class_archive", str(folder)])

    try:
        # Java ignores the archive if a jar of PySpark has another path or time.
        identity = repr([jars.STACK.lock.read_bytes(), java, ivy_jar(), ivy_jar().stat().st_mtime_ns]).encode()
        run_once(folder / ".classes", identity, make)
    except SetupError as error:
        say(f"Without the archive of its classes, Spark starts more slowly: {error}")


def wait_for_another_setup() -> None:
    """Wait until no other set-up of this checkout runs. Others wait until this process ends."""
    lock = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Waiting for another set-up of this checkout")
        fcntl.flock(lock, fcntl.LOCK_EX)


def say(message: str) -> None:
    print(f"{message} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    wait_for_another_setup()
    sys.exit(main(sys.argv[1:]))
