"""How Spark starts Python."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

import pipelines
from pipelines.runtime.session import worker_python

pytestmark = pytest.mark.program

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


def test_the_steps_of_a_worker_are_not_printed(tmp_path: Path) -> None:
    """PySpark's worker that prepares transformWithState prints its steps. Errors stay."""
    package = tmp_path / "pyspark" / "sql" / "streaming"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parents[1]):
        (folder / "__init__.py").touch()
    for name in ("transform_with_state_driver_worker", "another"):
        (package / f"{name}.py").write_text("import sys; print('a step'); sys.stderr.write('an error')")
    environment = {**os.environ, "PYSPARK_WORKER_PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}

    runs = [
        subprocess.run(
            [WORKER, "-m", f"pyspark.sql.streaming.{module}"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        for module in ("transform_with_state_driver_worker", "another")
    ]

    assert [("", "an error"), ("a step\n", "an error")] == [(run.stdout, run.stderr) for run in runs]


def test_the_operators_import_only_what_their_start_needs() -> None:
    """Each start of a query starts a Python process for each of its stateful operators, and gives it ten seconds."""
    program = "import sys, pipelines.accounts.operator, pipelines.deduplication.operator; print(*sys.modules)"

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert {"pandas", "pydantic", "confluent_kafka"}.isdisjoint(run.stdout.split())


def test_a_worker_whose_task_has_ended_prints_nothing(tmp_path: Path) -> None:
    """Spark closes the connection of an idle worker. Other errors keep their tracebacks."""
    (tmp_path / "ending.py").write_text(
        "import os, struct\n"
        "def main(infile, outfile):\n"
        "    outfile.write(b'the task has ended')\n"
        "    if struct.unpack('!i', infile.read(4)) == (2,):\n"
        "        raise ValueError('a real error')\n"
    )
    (tmp_path / "pyspark_ending.py").write_text("from ending import main\n")
    printed = [_output_of_a_worker(tmp_path, number) for number in (1, 2)]

    assert "" == printed[0]
    assert "ValueError: a real error" in printed[1]


def _output_of_a_worker(folder: Path, number: int) -> str:
    """What daemon and worker print if Spark sends a number and closes the connection before the worker answers."""
    command = [WORKER, "-m", "pyspark.daemon", "pyspark_ending"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # The path of a Unix socket has at most 107 bytes. pytest's folder is too long for it.
    with tempfile.TemporaryDirectory() as socket_folder:
        environment = {
            **os.environ,
            "PYSPARK_WORKER_PYTHON": sys.executable,
            "PYTHONPATH": f"{folder}:{Path(pipelines.__file__).parents[1]}",
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": socket_folder,
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
            "SPARK_REUSE_WORKER": "1",
        }
        with subprocess.Popen(command, env=environment, **pipes) as daemon:
            assert daemon.stdin
            assert daemon.stdout
            (length,) = struct.unpack("!i", daemon.stdout.read(4))
            with socket.socket(socket.AF_UNIX) as spark:
                spark.connect(daemon.stdout.read(length))
                (worker,) = struct.unpack("!i", spark.recv(4))
                os.kill(worker, signal.SIGSTOP)
                spark.sendall(struct.pack("!i", number))
            os.kill(worker, signal.SIGCONT)
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(worker).wait(60)
            _, printed = daemon.communicate(timeout=60)
    return printed.decode()


def test_workers_of_a_cluster_start_python_itself() -> None:
    """The script needs a variable of the driver's environment, and the workers of a cluster do not have it."""
    assert str(WORKER) == worker_python("local[2]")
    assert sys.executable == worker_python("spark://127.0.0.1:7077")
