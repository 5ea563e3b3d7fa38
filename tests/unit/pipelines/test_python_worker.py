"""How Spark starts Python."""

import os
import subprocess
import sys
from pathlib import Path

import pipelines
from pipelines.runtime.session import worker_python

WORKER = Path(pipelines.__file__).with_name("runtime") / "python-worker"


def test_zip_files_are_not_on_the_path() -> None:
    """Folders stay in their order. Zips and jars, also PySpark's, are removed. Arguments reach Python."""
    environment = {
        **os.environ,
        "PYSPARK_WORKER_PYTHON": sys.executable,
        "PYTHONPATH": "/a/pyspark.zip:/b c:/d/spark-core.jar::/e",
    }
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])"

    run = subprocess.run([WORKER, "-c", program, "x y"], env=environment, capture_output=True, text=True, check=True)

    assert "/b c:/e ['x y']" == run.stdout.strip()


def test_workers_of_a_cluster_start_python_itself() -> None:
    """The script needs a variable of the driver's environment, and the workers of a cluster do not have it."""
    assert str(WORKER) == worker_python("local[2]")
    assert sys.executable == worker_python("spark://127.0.0.1:7077")
