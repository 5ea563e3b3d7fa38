"""What the program of a user gets: types, and a folder that it can copy under another name."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import api.client

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "use-the-python-client.md"
MISTAKES = """
reveal_type(loyalty.balance("9265846829").available)
loyalty.redeem("9265846829", "10.00")
"""


@pytest.mark.program
def test_mypy_checks_a_program_that_uses_the_client(tmp_path: Path) -> None:
    """The example of the page has no error, and points must be exact. Without `py.typed`, everything would be Any."""
    (example,) = re.findall(r"^    from decimal .*?(?=^\S)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "program.py").write_text(textwrap.dedent(example) + MISTAKES, encoding="utf-8")
    # Without the types of httpx, mypy needs half the time.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-httpx.*]\nfollow_imports = skip\n")
    options = ["--cache-dir", os.devnull, "--python-executable", sys.executable]
    command = [sys.executable, "-m", "mypy", *options, "program.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    expected = [
        ' note: Revealed type is "decimal.Decimal"',
        ' error: Argument 2 to "redeem" of "LoyaltyClient" has incompatible type "str"; expected "Decimal"  [arg-type]',
    ]
    assert expected == re.findall(r"^program.py:\d+:(.*)", run.stdout, re.MULTILINE), run


@pytest.mark.program
def test_a_program_with_a_package_api_can_copy_the_client(tmp_path: Path) -> None:
    """The copy does not need the rest of this project."""
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "__init__.py").touch()
    shutil.copytree(Path(api.client.__file__).parent, tmp_path / "loyalty_client")
    program = "import api, sys; from loyalty_client.clients import LoyaltyClient; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert 0 == run.returncode, run.stderr
    assert set() == {"api.client", "services", "schemas"} & {*run.stdout.split()}
