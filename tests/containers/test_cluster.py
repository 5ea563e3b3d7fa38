"""The pipeline on a Spark cluster of containers gives the same output as on one machine."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.containers.project import Container, ContainersError, engine
from infra.containers.stack import ContainerStack
from infra.demo.oracle import expect
from infra.demo.report import figures
from infra.demo.run import progress_bars, run
from infra.demo.trading_day import simulated
from infra.local.stack import private_settings
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.simulation import Options
from tests.support.processes import SMALL_JVM

MASTER = "spark://spark-master:7077"
DAY = Options(count=360, seed=8)
RATE = 100
_APPLICATIONS = "http://127.0.0.1:4040/api/v1/applications"
_SAME_LOOKS = 4
"""The status of the driver lags behind its events. Looks are half a second apart."""


class Cluster(ContainerStack):
    """The stack with a pipeline that is submitted to a master with two workers.

    Attributes:
        lost: the worker that the test killed, if any.
    """

    def __init__(self, directory: Path, *, loses_a_worker: bool) -> None:
        settings = private_settings(
            directory,
            spark_master=MASTER,
            spark_java_options=SMALL_JVM,
            sales_interval=timedelta(seconds=2),
            export_interval=timedelta(seconds=2),
            stop_timeout=timedelta(seconds=1),
            # Several batches for each query, so that a kill can hit the middle of a batch.
            max_offsets_per_trigger=120,
        )
        super().__init__(directory, settings, profiles=["cluster"])
        self.lost: Container | None = None
        self._loses_a_worker = loses_a_worker
        self._stopped: Container | None = None
        self._looks: list[tuple[int, int]] = []

    def check(self) -> None:
        """Runs twice a second while the queries process the day. Kills a worker if the test wants it."""
        super().check()
        if self._loses_a_worker and self.lost is None:
            self.lost = self._kill_a_busy_worker()

    def _kill_a_busy_worker(self) -> Container | None:
        """Stop a busy worker, and kill it when the driver has said for some time that tasks wait for it.

        Tasks of a stopped worker cannot end, and the driver gives it more. So the kill always hits a task.
        """
        if self._stopped is None:
            self._stopped = next(
                (each for each in self.project.containers("spark-worker") if self._tasks(each)[0]), None
            )
            if self._stopped:
                signal_all(self._stopped, "STOP")
            return None
        tasks = self._tasks(self._stopped)
        self._looks = [*self._looks, tasks] if tasks in self._looks else [tasks]
        if not tasks[0] or len(self._looks) < _SAME_LOOKS:
            return None
        engine("kill", self._stopped.id)
        return self._stopped

    def _tasks(self, worker: Container) -> tuple[int, int]:
        """Active and completed tasks on the executors of a worker, as the driver reports them.

        No task counts as active before the first one is complete.
        """
        networks = json.loads(engine("inspect", "--format", "{{json .NetworkSettings.Networks}}", worker.id))
        addresses = {network["IPAddress"] for network in networks.values()}
        executors = [each for each in self.executors() if each["hostPort"].rpartition(":")[0] in addresses]
        completed = sum(each["completedTasks"] for each in executors)
        return sum(each["activeTasks"] for each in executors if completed), completed

    def executors(self) -> list[dict[str, Any]]:
        """Active and lost executors, as the driver reports them. Empty before the driver runs."""
        ask = (
            "import json, urllib.request as r\n"
            f"url = '{_APPLICATIONS}'\n"
            "name = json.load(r.urlopen(url))[0]['id']\n"
            "print(r.urlopen(f'{url}/{name}/allexecutors').read().decode())"
        )
        try:
            found: list[dict[str, Any]] = json.loads(
                engine("exec", self.project.container("pipeline").id, "python", "-c", ask)
            )
        except ContainersError:  # the driver does not answer yet
            return []
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster."""
    started: list[Cluster] = []

    def start(**options: bool) -> Cluster:
        started.append(Cluster(tmp_path, **options))
        started[-1].start()
        return started[-1]

    yield start
    for stack in started:
        stack.stop()


def process_a_day(stack: Cluster) -> dict[str, Any]:
    """Publish the day, and compare every record, row and balance with the oracle of the local demo."""
    sent = list(simulated(DAY, schema_ids(stack.settings)))
    result = run(stack, sent, expect(sent, stack.settings.loyalty_factor), RATE, progress_bars(Console()))
    assert [] == result.mismatches
    return figures(result)


def signal_all(container: Container, name: str) -> None:
    """Send a signal to every process of a container except the first."""
    engine("exec", container.id, "sh", "-c", f"kill -{name} -1")


def workers_of(stack: Cluster) -> list[str]:
    """The state of each worker, as the master reports it."""
    said = engine("exec", stack.project.container("spark-master").id, "python", "-c", _WORKERS)
    return sorted(json.loads(said))


_WORKERS = (
    "import json, urllib.request as r\n"
    "print(json.dumps([each['state'] for each in json.load(r.urlopen('http://127.0.0.1:8080/json/'))['workers']]))"
)


@pytest.mark.timeout(1800)
def test_a_cluster_gives_the_same_output_as_one_machine(cluster: Callable[..., Cluster]) -> None:
    """The output agrees with the oracle, and executors on both workers did the work."""
    stack = cluster(loses_a_worker=False)
    assert 0 == process_a_day(stack)["mismatches"]
    assert ["ALIVE", "ALIVE"] == workers_of(stack)
    executors = {each["hostPort"].rpartition(":")[0]: each for each in stack.executors() if each["id"] != "driver"}
    assert 2 == len(executors)
    assert all(each["completedTasks"] and not each["failedTasks"] for each in executors.values())


@pytest.mark.timeout(1800)
def test_a_worker_that_dies_in_a_batch_changes_no_output(cluster: Callable[..., Cluster]) -> None:
    """After the kill of a worker with a running task, the other worker repeats the task, and the totals agree."""
    stack = cluster(loses_a_worker=True)
    assert 0 == process_a_day(stack)["mismatches"]
    assert stack.lost is not None
    deadline = time.monotonic() + 120  # the master waits a minute for a silent worker
    while "DEAD" not in workers_of(stack):
        assert time.monotonic() < deadline
        time.sleep(1)
    (lost,) = [each for each in stack.executors() if not each["isActive"]]
    # Spark counts a task as failed only if the end of the task reaches its status before the loss of the executor does.
    # Otherwise the task stays active there for ever.
    assert lost["activeTasks"] + lost["failedTasks"], "the worker had no task when it was killed"
