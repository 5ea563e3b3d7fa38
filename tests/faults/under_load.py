"""Faults under load. They are injected after some progress, and audited when all readers have caught up."""

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from infra.demo.comparison import Nature
from infra.local.stack import Service
from pipelines.driver.watch import WORKER_FAILURES
from schemas import topics
from schemas.topics import Topic
from services.pos_simulator.simulation import Options, Simulation
from tests.faults.auditor import Earlier, Observations, audit
from tests.faults.clerks import Clerks
from tests.faults.environment import Environment, paused
from tests.faults.load import Callers, Tills, Watchers
from tests.faults.report import Row
from tests.faults.scenario import Scenario
from tests.support.processes import delete_newest_commit, newest_batch

RATE = 4.0
"""Messages per second: a steady load that even a busy machine can process."""

_READ, _SERVED = 12, 8
"""The number of customers whose balances callers read, and of customers for whom clerks send commands."""

_CLERKS = 8

_FAILED_TASK = WORKER_FAILURES[1].encode()
_LOG_SECONDS = 3.0
"""Longer than the time from the kill of a worker to the line about its task in the log."""

_OUTAGE_SECONDS = 25.0
"""Longer than the consumer of a task waits for Kafka (``kafka.default.api.timeout.ms`` in pipelines/sources/kafka.py).
"""

_MARKS_AND_DECISIONS = 6
"""The records of three commands, which have two each."""


@dataclass(frozen=True)
class Fault:
    """A fault that is injected under load.

    Attributes:
        inject: injects the fault once, and repairs what a supervisor or operator would repair.
        progress: the topic that must receive new records before each injection.
    """

    name: str
    inject: Callable[[Environment, random.Random], None]
    progress: Topic = topics.LOYALTY


def kill_pipeline(environment: Environment, _: random.Random) -> None:
    environment.restart(environment.stack.pipeline)


def delete_newest_commits(environment: Environment, _: random.Random) -> None:
    """Delete the newest commit of every query, as after a crash between the sink and the commit."""
    environment.stack.pipeline.stop()
    settings = environment.settings
    checkpoints = [*Path(settings.checkpoint_dir).glob("*/"), Path(settings.export_dir, "_checkpoint")]
    for checkpoint in checkpoints:
        delete_newest_commit(checkpoint)
    environment.stack.pipeline.start()


def kill_python_worker(environment: Environment, _: random.Random) -> None:
    """Kill the Python worker that works most, until the log says that a task failed with its worker."""
    log = environment.stack.pipeline.process.log_file
    failures = log.read_bytes().count(_FAILED_TASK)
    before: dict[psutil.Process, float] = {}
    killed_at = 0.0

    def failed() -> bool:
        nonlocal before, killed_at
        if log.read_bytes().count(_FAILED_TASK) > failures:
            return True
        used = environment.python_workers()
        grown = {each: used[each] - before[each] for each in used if used[each] > before.get(each, used[each])}
        before = used
        if grown and time.monotonic() > killed_at + _LOG_SECONDS:
            with contextlib.suppress(psutil.NoSuchProcess):  # the worker has ended meanwhile
                max(grown, key=lambda each: grown[each]).kill()
                killed_at = time.monotonic()
        return False

    environment.until("a task that fails with its Python worker", failed)


def kill_broker(environment: Environment, _: random.Random) -> None:
    environment.stack.broker.process.kill()
    environment.stack.broker.start()


def stop_broker_for_long(environment: Environment, _: random.Random) -> None:
    """Kill the broker in a micro-batch, and start it again after the consumers of its tasks have given up."""
    checkpoint = Path(environment.settings.checkpoint_dir, "loyalty")
    environment.until("a micro-batch that runs", lambda: _is_in_micro_batch(checkpoint))
    environment.stack.broker.process.kill()
    end = time.monotonic() + _OUTAGE_SECONDS
    environment.until("the end of the outage", lambda: time.monotonic() > end)
    environment.stack.broker.start()


def _is_in_micro_batch(checkpoint: Path) -> bool:
    return newest_batch(checkpoint, "offsets") != newest_batch(checkpoint, "commits")


def bounce_broker(environment: Environment, _: random.Random) -> None:
    environment.stack.broker.stop()
    environment.stack.broker.start()


def kill_api(environment: Environment, rng: random.Random) -> None:
    environment.restart(rng.choice(environment.stack.apis))


def kill_restoring_api(environment: Environment, rng: random.Random) -> None:
    """Kill an instance, delete its stores, and kill it again as soon as it restores them."""
    api = rng.choice(environment.stack.apis)
    api.process.kill()
    shutil.rmtree(api.settings.state_dir)
    # Wait only until the instance is alive, and not until it is ready, so that the kill hits the restore.
    api.start(lambda: bool(environment.report(api)))
    environment.restart(api)


def pause_api(environment: Environment, rng: random.Random) -> None:
    """Pause an instance for longer than its session timeout.

    The other instance takes over its partitions. The paused instance must notice this when it continues.
    """
    api = rng.choice(environment.stack.apis)
    others = [each for each in environment.stack.apis if each is not api]
    with paused(api.process.pid or 0):
        environment.until("another owner of all partitions", lambda: _owns_all(environment, others))
        # Commands change the balances meanwhile. The paused instance has old ones, which it must not serve as current.
        environment.until_written(topics.LOYALTY_DECISIONS, _MARKS_AND_DECISIONS)


def _owns_all(environment: Environment, apis: list[Service]) -> bool:
    roles = [
        each
        for api in apis
        for each in environment.report(api, "/v1/instances/local").get("partitions", ())
        if each["store"] == "customer-balances" and each["role"] == "active" and each["restored"]
    ]
    return {each["partition"] for each in roles} == set(range(environment.settings.partitions))


def pause_pipeline(environment: Environment, _: random.Random) -> None:
    """Pause the driver, its JVM and its workers beyond the session timeout of their Kafka clients."""
    leader = psutil.Process(environment.stack.pipeline.process.pid)
    end = time.monotonic() + environment.settings.session_timeout.total_seconds()
    with paused(leader.pid, *(each.pid for each in leader.children(recursive=True))):
        environment.until("the end of the pause", lambda: time.monotonic() > end)


FAULTS = (
    Fault("kill -9 of a Python worker in a batch", kill_python_worker),
    Fault("kill -9 of the broker", kill_broker),
    Fault("an outage of Kafka that is longer than a task waits", stop_broker_for_long),
    Fault("kill -9 of an API instance that serves", kill_api),
    Fault("orderly bounce of the broker", bounce_broker),
    Fault("SIGSTOP of an API instance beyond the session time-out", pause_api),
    Fault("kill -9 of the Spark driver", kill_pipeline),
    Fault("newest commit of every query lost", delete_newest_commits),
    Fault("kill -9 of an API instance that restores", kill_restoring_api),
    Fault("SIGSTOP of the pipeline beyond the session time-out", pause_pipeline),
)


def run(fault: Fault, _name: str, environment: Environment, seed: int) -> Row:
    """Inject a fault, wait until all readers have caught up, and audit."""
    rng = random.Random(f"{seed}/{fault.name}")
    with load(environment, seed) as observations:
        environment.until_written(fault.progress, rng.randint(1, 20))
        fault.inject(environment, rng)
        recovery = environment.recovered()
    return audited_row(environment, fault.name, observations, recovery)


def served_cards(seed: int) -> list[str]:
    """The cards for which clerks send commands."""
    return prime_cards(seed)[:_SERVED]


def prime_cards(seed: int) -> list[str]:
    """The cards that earn points from the load."""
    options = Options(count=400, seed=seed, customers=200)
    invoices = [message.invoice for message in Simulation(options).messages() if message.invoice]
    return sorted({str(each["CustomerCardNo"]) for each in invoices if each["CustomerType"] == "PRIME"})


@contextmanager
def load(environment: Environment, seed: int) -> Iterator[Observations]:
    """Run tills, callers, watchers and clerks while the block runs. Then wait until every command has a response."""
    served = served_cards(seed)
    histories = environment.histories
    stack, http = environment.stack, environment.http
    callers = Callers(stack, http, prime_cards(seed)[:_READ], histories)
    clerks = Clerks(stack, http, served, histories, seed, _CLERKS)
    with callers, clerks, Watchers(stack, http, served, histories), Tills(stack, seed, RATE):
        yield Observations(callers.readings, clerks.answers, histories, histories.count)
        clerks.stop()
        environment.until("an answer to every command", lambda: clerks.are_done)


def audited_row(
    environment: Environment,
    fault: str,
    observations: Observations,
    recovery: float,
    evidence: str = "",
    earlier: Earlier | None = None,
) -> Row:
    """Wait until all readers have caught up, and audit. Returns the row of one injection."""
    environment.settle()
    verdict = audit(environment.settings, environment.stack.apis[0].url, observations, earlier, environment.ledger)
    answers = observations.answers
    seen = f"{verdict.invoices:,} invoices, {verdict.commands:,} commands, {observations.readings.answers:,} reads"
    details = [f"{seen}: {verdict}", evidence, f"slowest command: {answers.slowest_tries or 'not repeated'}"]
    return Row(
        fault=fault,
        injected=1,
        lost=verdict.count(Nature.LOST),
        doubled=verdict.count(Nature.DOUBLED),
        wrong_answers=verdict.count(Nature.WRONG),
        again=environment.newly_repeated(verdict.again),
        operations=observations.histories.count - observations.operations_before,
        not_linearizable=verdict.not_linearizable,
        unavailable_seconds=round(observations.readings.unavailable_seconds, 1),
        recovery_seconds=round(recovery, 1),
        slowest_command_seconds=round(answers.slowest_seconds, 1),
        evidence="; ".join(filter(None, details)),
    )


SCENARIOS: dict[str, Scenario[Environment]] = {fault.name: Scenario(partial(run, fault)) for fault in FAULTS}
