"""Faults while tills publish and callers read: injected on evidence of progress, audited when all has settled."""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.demo.comparison import Nature
from infra.local import jars
from infra.local.stack import Service, environment_of
from schemas import topics
from schemas.topics import Topic
from services.pos_simulator import Options, Simulation
from tests.faults.auditor import Verdict, audit
from tests.faults.environment import Environment, paused
from tests.faults.load import Callers, Readings, Tills
from tests.faults.report import Row

RATE = 40.0
"""Messages a second: more than trickles, less than what a starved machine needs to catch up with."""

_CALLERS = 12


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        inject: does it once, to a stack under load, and mends what a supervisor or an operator would.
        progress: the topic on which something must have moved before the next one.
    """

    name: str
    inject: Callable[[Environment, random.Random], None]
    times: int = 3
    progress: Topic = topics.LOYALTY


def kill_pipeline(environment: Environment, _: random.Random) -> None:
    environment.restart(environment.stack.pipeline)


def replay_newest_batches(environment: Environment, _: random.Random) -> None:
    """What stands in the checkpoints after a crash between the sink and the commit, for all queries at once."""
    environment.stack.pipeline.stop()
    settings = environment.settings
    checkpoints = [*Path(settings.checkpoint_dir).glob("*/"), Path(settings.export_dir, "_checkpoint")]
    for checkpoint in checkpoints:
        commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
        newest = max(commits, key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    environment.stack.pipeline.start()


def kill_python_worker(environment: Environment, chance: random.Random) -> None:
    environment.until("a Python worker", lambda: bool(environment.python_workers()))
    workers = environment.python_workers()
    if workers:
        chance.choice(workers).kill()


def kill_broker(environment: Environment, _: random.Random) -> None:
    environment.stack.broker.process.kill()
    environment.stack.broker.start()


def bounce_broker(environment: Environment, _: random.Random) -> None:
    environment.stack.broker.stop()
    environment.stack.broker.start()


def kill_api(environment: Environment, chance: random.Random) -> None:
    environment.restart(chance.choice(environment.stack.apis))


def kill_restoring_api(environment: Environment, chance: random.Random) -> None:
    """Killed once, and again as soon as the next life has begun to read the changelog."""
    api = chance.choice(environment.stack.apis)
    api.process.kill()
    shutil.rmtree(api.settings.state_dir)
    api.process.start(  # not ready, only alive: it is to be killed while it restores
        *_command(environment, api.process.name), lambda: bool(environment.report(api)), 240
    )
    environment.restart(api)


def _command(environment: Environment, name: str) -> tuple[list[str], dict[str, str], Path]:
    api = next(each for each in environment.stack.apis if each.process.name == name)
    return [sys.executable, "-m", "api"], environment_of(api.settings), jars.ROOT


def pause_api(environment: Environment, chance: random.Random) -> None:
    """SIGSTOP for longer than the session: its partitions go to the other, and it must notice when it wakes."""
    api = chance.choice(environment.stack.apis)
    others = [each for each in environment.stack.apis if each is not api]
    with paused(api.process.pid or 0):
        environment.until("another owner of all partitions", lambda: _owns_all(environment, others))


def _owns_all(environment: Environment, apis: list[Service]) -> bool:
    roles = [
        each
        for api in apis
        for each in environment.report(api).get("partitions", ())
        if each["store"] == "customer-balances" and each["role"] == "active" and each["restored"]
    ]
    return {each["partition"] for each in roles} == set(range(topics.LOYALTY_BALANCES.partitions))


def pause_pipeline(environment: Environment, _: random.Random) -> None:
    """SIGSTOP of the driver and its JVM for as long as the session of its Kafka clients lasts."""
    members = [each.pid for each in _family(environment)]
    for pid in members:
        os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    environment_ready = environment.settings.session_timeout.total_seconds()
    while time.monotonic() - start < environment_ready:
        environment.until_written(topics.POS_INVOICES, 20)
    for pid in members:
        os.kill(pid, signal.SIGCONT)


def _family(environment: Environment) -> list[psutil.Process]:
    leader = psutil.Process(environment.stack.pipeline.process.pid)
    return [leader, *leader.children(recursive=True)]


FAULTS = (
    Fault("kill -9 of the Spark driver", kill_pipeline),
    Fault("newest commit of every query lost", replay_newest_batches, times=1),
    Fault("kill -9 of a Python worker in a batch", kill_python_worker),
    Fault("kill -9 of the broker", kill_broker, times=5),
    Fault("orderly bounce of the broker", bounce_broker, times=5),
    Fault("SIGSTOP of the pipeline beyond the session time-out", pause_pipeline, times=1),
    Fault("kill -9 of an API instance that serves", kill_api),
    Fault("kill -9 of an API instance that restores", kill_restoring_api, times=2),
    Fault("SIGSTOP of an API instance beyond the session time-out", pause_api, times=2),
)


def run(fault: Fault, environment: Environment, seed: int) -> Row:
    """Inject it under load, as often as it says, let everything settle, and audit."""
    chance = random.Random(f"{seed}/{fault.name}")
    recoveries: list[float] = []
    with load(environment, seed) as readings:
        environment.until_written(fault.progress)
        for _ in range(fault.times):
            environment.until_written(fault.progress, chance.randint(1, 40))
            fault.inject(environment, chance)
            recoveries.append(environment.recovered())
    environment.settle()
    verdict = audit(environment.settings, environment.stack.apis[0].url, readings)
    return row_of(fault.name, fault.times, verdict, readings, max(recoveries))


@contextmanager
def load(environment: Environment, seed: int) -> Iterator[Readings]:
    """Tills and callers, until the end of the block."""
    options = Options(count=400, seed=seed, customers=200)
    invoices = [message.invoice for message in Simulation(options).messages() if message.invoice]
    prime = {str(each["CustomerCardNo"]) for each in invoices if each["CustomerType"] == "PRIME"}
    callers = Callers(environment.stack, sorted(prime)[:_CALLERS])
    with callers, Tills(environment.stack, seed, RATE):
        yield callers.readings


def row_of(
    name: str, times: int, verdict: Verdict, readings: Readings | None = None, recovery: float | None = None
) -> Row:
    return Row(
        fault=name,
        injected=times,
        lost=verdict.count(Nature.LOST),
        doubled=verdict.count(Nature.DOUBLED),
        wrong_answers=verdict.count(Nature.WRONG),
        again=verdict.again,
        unavailable_seconds=None if readings is None else round(readings.unavailable_seconds, 1),
        recovery_seconds=None if recovery is None else round(recovery, 1),
        evidence=f"{verdict.invoices:,} invoices: {verdict}"
        + (f"; {readings.answers:,} answers" if readings is not None else ""),
    )
