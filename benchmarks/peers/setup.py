"""Sets up the peers in var/peers: jars and classes of Kafka Streams, and an environment for the Python peers.

``python -m benchmarks.peers.setup lock-jars`` downloads the jars again and writes their checksums (``make lock``).
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from infra.local import jars
from infra.local.folders import ROOT
from infra.local.java import feature_release, find_java_home
from infra.setup import ivy_jar, run_once

HERE = Path(__file__).resolve().parent
WORK = ROOT / "var" / "peers"
SOURCES = HERE / "kafka_streams"
REQUIREMENTS = ROOT / "requirements" / "peers.txt"

_JARS = jars.JarSet(WORK / "jars", HERE / "jars.sha256", ["streams"])
_CLASSES, _VENV = WORK / "classes", WORK / "venv"
_OLDEST_JDK = 17


class PeersSetupError(RuntimeError):
    """A peer cannot be set up. The message is one line with the next step."""


def java_class_path() -> str:
    """The class path of the compiled Kafka Streams peer. Raises PeersSetupError, JarsError, JavaNotFoundError."""
    compiler = find_compiler()
    _JARS.ensure(java(), ivy_jar())
    jar_path = f"{_JARS.directory}/streams/*"
    sources = sorted(SOURCES.glob("*.java"))
    content = b"".join(source.read_bytes() for source in sources) + _JARS.lock.read_bytes()

    def compile_all() -> None:
        shutil.rmtree(_CLASSES, ignore_errors=True)
        release = ["--release", str(_OLDEST_JDK)]
        _run([str(compiler), *release, "-d", str(_CLASSES), "-cp", jar_path, *map(str, sources)])

    run_once(WORK / ".classes", content, compile_all)
    return f"{_CLASSES}:{jar_path}"


def java() -> Path:
    """The Java that also runs Spark."""
    return find_java_home() / "bin" / "java"


def find_compiler() -> Path:
    """A javac of version 17 or newer. Raises PeersSetupError."""
    beside, on_path = java().with_name("javac"), shutil.which("javac")
    for compiler in (beside, Path(on_path) if on_path else beside):
        if compiler.exists():
            said = subprocess.run([str(compiler), "-version"], capture_output=True, text=True, check=False).stdout
            version = re.search(r"\d[\d.]*", said)
            if version and feature_release(version[0]) >= _OLDEST_JDK:
                return compiler
    raise PeersSetupError(f"no javac {_OLDEST_JDK} or newer found: install one, for example openjdk-17-jdk-headless")


def python() -> Path:
    """The interpreter of the Python peers, with its packages installed if needed. Raises PeersSetupError."""
    interpreter = _VENV / "bin" / "python"

    def install() -> None:
        _run([sys.executable, "-m", "venv", "--clear", str(_VENV)])
        pip = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        _run([*pip, "--require-hashes", "-r", str(REQUIREMENTS)])

    run_once(WORK / ".packages", REQUIREMENTS.read_bytes(), install)
    return interpreter


def versions() -> dict[str, str]:
    """The versions of all contenders, by name."""
    packages = dict(re.findall(r"^([a-z-]+)(?:\[.*\])?==(\S+)", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE))
    named = {"Kafka Streams": "kafka-streams", "RocksDB (Java)": "rocksdbjni", "Avro (Java)": "avro"}
    files = " ".join(_JARS.locked())
    said = subprocess.run([str(java()), "-version"], capture_output=True, text=True, check=False).stderr
    return {
        "Java": said.partition('"')[2].partition('"')[0],
        **{name: found[1] for name, jar in named.items() if (found := re.search(rf"{jar}-([\d.]+)\.jar", files))},
        "Quix Streams": packages["quixstreams"],
        "Faust": packages["faust-streaming"],
    }


def _run(command: list[str]) -> None:
    if status := subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise PeersSetupError(f"this command failed with status {status}: read its output above: {' '.join(command)}")


if __name__ == "__main__":
    if sys.argv[1:] != ["lock-jars"]:
        sys.exit("usage: python -m benchmarks.peers.setup lock-jars")
    _JARS.download(java(), ivy_jar())
    _JARS.write_lock()
