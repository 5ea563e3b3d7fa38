"""Runs the examples of docs/how-to/publish-invoices.md as the vendor of a till does."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest

import schemas
from infra.local import jars
from infra.local.java import find_java_home

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "publish-invoices.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILES = {
    "json": "invoice.json",
    "text": "invoice.hex",
    "python": "publish.py",
    "java": "Publish.java",
    "properties": "secured.properties",
    "ini": "secured.ini",
}
_SECONDS = 240


def blocks(heading: str) -> list[str]:
    """The code blocks of a section with commands (bash), in order."""
    (section,) = re.findall(
        rf"^##+ {heading}$(.*?)(?=^##+ |\Z)", _PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [text for language, text in _BLOCK.findall(section) if language == "bash"]


class Vendor:
    """A folder with the files of the page. The commands of the page run in this folder."""

    def __init__(self, folder: Path, broker: str, topic: str) -> None:
        self.folder = folder
        for language, text in _BLOCK.findall(_PAGE.read_text(encoding="utf-8")):
            if language in _FILES:
                (folder / _FILES[language]).write_text(text, encoding="utf-8")
        (folder / "PosInvoice.avsc").write_text(schemas.schema_text("PosInvoice.avsc"), encoding="utf-8")
        java = find_java_home()
        path = [str(Path(sys.executable).parent), str(java / "bin"), os.environ["PATH"]]
        self.environment = {"PATH": os.pathsep.join(path), "CLASSPATH": _class_path()}
        self.environment |= {"BROKER": broker, "TOPIC": topic, **self._exported("Avro, byte by byte")}

    def _exported(self, heading: str) -> Mapping[str, str]:
        (line,) = blocks(heading)
        return dict(re.findall(r"(\w+)=(\S+)", line))

    def runs(self, command: str) -> None:
        """Run a block of the page. It must succeed."""
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert 0 == run.returncode, f"{command}{run.stdout}{run.stderr}"


def need(tool: str) -> None:
    """Skip a test if the machine lacks the programs of its example."""
    if tool == "kcat" and not (shutil.which("kcat") and shutil.which("xxd")):
        pytest.skip("kcat or xxd is not installed: `make test-tools` installs them on Debian")
    if tool == "curl" and not (shutil.which("curl") and shutil.which("jq")):
        pytest.skip("curl or jq is not installed")
    if tool == "Java" and not (find_java_home() / "bin" / "javac").exists():
        pytest.skip("Java has no compiler: install a JDK, for example openjdk-17-jdk-headless")


def _class_path() -> str:
    """The class path with the Kafka client, Avro and Jackson only."""
    spark = Path(str(pyspark.__file__)).parent / "jars"
    found = [
        *jars.folder("kafka").glob("kafka-clients-*.jar"),
        *jars.folder("kafka").glob("slf4j-api-*.jar"),
        *(
            path
            for name in ("avro", "jackson-core", "jackson-databind", "jackson-annotations")
            for path in spark.glob(f"{name}-[0-9]*.jar")
        ),
    ]
    assert 6 == len(found), found
    return os.pathsep.join(map(str, found))
