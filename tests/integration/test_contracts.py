"""The AsyncAPI project's own parser accepts the committed document."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from infra.contracts.__main__ import FOLDER, committed

PROJECT = Path(__file__).resolve().parents[1] / "contracts"
MINUTES_5 = 300

pytestmark = [
    pytest.mark.skipif(not shutil.which("npm"), reason="Node.js is missing: install nodejs and npm"),
    pytest.mark.xdist_group("asyncapi"),  # one process installs the parser
]


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the parser is installed, at the versions of the lock."""
    folder = tmp_path_factory.mktemp("asyncapi")
    for name in ("package.json", "package-lock.json", "validate.mjs"):
        shutil.copy(PROJECT / name, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=MINUTES_5, env=os.environ)
    return folder


def validate(parser: Path, document: Path) -> subprocess.CompletedProcess[str]:
    command = ["node", "validate.mjs", str(document)]
    return subprocess.run(command, cwd=parser, check=False, capture_output=True, text=True, timeout=MINUTES_5)


def test_the_parser_accepts_the_document(parser: Path) -> None:
    result = validate(parser, FOLDER / "asyncapi.json")
    assert (0, "") == (result.returncode, result.stdout + result.stderr)


@pytest.mark.parametrize(
    ("part", "value", "complaint"),
    [
        ("channels", {"hadoop": {"messages": {"None": {"$ref": "#/components/messages/None"}}}}, "None"),
        ("operations", {"till": {"action": "publish"}}, "action"),
    ],
)
def test_the_parser_refuses_a_wrong_document(
    part: str, value: object, complaint: str, parser: Path, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(committed("asyncapi.json") | {part: value}), encoding="utf-8")
    result = validate(parser, file)
    assert result.returncode == 1
    assert complaint in result.stdout
