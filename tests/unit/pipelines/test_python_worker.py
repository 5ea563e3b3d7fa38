"""How Spark starts Python."""

import os
import subprocess
import sys
from pathlib import Path

import pipelines

WORKER = Path(pipelines.__file__).with_name("python-worker")


def test_what_is_zipped_is_not_on_the_path() -> None:
    """Folders stay in their order; zips and jars go, with PySpark's among them. Arguments are passed on."""
    environment = {
        **os.environ,
        "PYSPARK_WORKER_PYTHON": sys.executable,
        "PYTHONPATH": "/a/pyspark.zip:/b c:/d/spark-core.jar::/e",
    }
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])"

    run = subprocess.run([WORKER, "-c", program, "x y"], env=environment, capture_output=True, text=True, check=True)

    assert "/b c:/e ['x y']" == run.stdout.strip()
