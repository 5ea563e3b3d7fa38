"""Days in the time zone of the programme."""

import subprocess
import sys
from importlib import resources
from pathlib import Path

PROGRAM = """
from services.domain.local_time import end_of_day
print(end_of_day(0, "Asia/Kolkata"), end_of_day(0, "only-here"))
"""


def test_the_package_has_precedence_over_the_time_zone_database_of_the_machine(tmp_path: Path) -> None:
    """The database of this machine is wrong: there, India has the time of Greenwich. It also has a zone of its own."""
    greenwich = (resources.files("tzdata") / "zoneinfo" / "UTC").read_bytes()
    (tmp_path / "Asia").mkdir()
    for name in ("Asia/Kolkata", "only-here"):
        (tmp_path / name).write_bytes(greenwich)

    ends = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={"PYTHONTZPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    ).stdout

    india, here = 66_600_000, 86_400_000
    assert f"{india} {here}\n" == ends
