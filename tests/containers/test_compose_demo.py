"""`make compose-demo`, as a user runs it, with a short day."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infra.containers.project import engine
from infra.containers.stack import ContainerStack
from infra.local.folders import ROOT
from infra.local.stack import private_settings


@pytest.mark.parametrize(
    ("options", "name"), [((), "compose-demo"), (("--secured",), "secured-compose-demo")], ids=["plain", "secured"]
)
def test_every_result_agrees_and_nothing_remains(tmp_path: Path, options: tuple[str, ...], name: str) -> None:
    """The report has the keys of the local demo and no mismatch. No container, volume or network remains."""
    command = [
        sys.executable,
        "-m",
        "infra.demo",
        "--containers",
        *options,
        "--invoices",
        "300",
        "--dir",
        str(tmp_path),
    ]
    demo = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    report = json.loads((tmp_path / f"reports/{name}.json").read_text(encoding="utf-8"))
    assert (300, 0) == (report["invoices"], report["mismatches"])
    assert report["points"] > 0
    assert report["parquet_rows"] == report["hadoop"] > 0
    project = ContainerStack(tmp_path / name, private_settings(tmp_path)).project.name
    for what in ("container", "volume", "network"):
        assert "" == engine(what, "ls", "--quiet", "--filter", f"label=com.docker.compose.project={project}")
