"""The configuration of the local broker: infra.local.broker."""

import re
from pathlib import Path

from infra.local.broker import LocalBroker
from infra.local.processes import ManagedProcess


class Process(ManagedProcess):
    """Starts nothing."""

    def start(self, *_: object) -> None: ...


def test_java_reads_every_letter_of_a_path(tmp_path: Path) -> None:
    """Java reads the file as ISO-8859-1, and replaces escapes."""
    folder = tmp_path / "Märkte \\ 日本"
    (folder / "kafka" / "data").mkdir(parents=True)
    (folder / "kafka" / "data" / "meta.properties").touch()  # Kafka does not format a folder with this file.
    LocalBroker(folder, process=Process("kafka", folder, folder)).start()

    text = (folder / "kafka" / "server.properties").read_bytes().decode("iso-8859-1")
    (path,) = re.findall("^log.dirs=(.*)$", text, re.MULTILINE)
    assert str(folder / "kafka" / "data") == path.encode("ascii").decode("unicode_escape")
