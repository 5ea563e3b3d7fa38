"""What must be refused: bad messages, a gap that retention has made, a second pipeline, settings that do not fit."""

from collections.abc import Iterable
from dataclasses import replace

from confluent_kafka import TopicPartition

from infra.local.ports import free_port
from schemas import topics
from services.messaging.clients import admin, producer
from services.settings import Settings
from tests.faults import poison
from tests.faults.environment import Environment
from tests.faults.load import Tills
from tests.faults.programs import REFUSED, last_error, run_module
from tests.faults.report import Row
from tests.faults.under_load import RATE, OnAStack, judged, load

_FUZZED = 3_000


def poisoned(name: str, environment: Environment, seed: int) -> Row:
    """Every kind of bad message among good ones, and a few thousand that chance has damaged."""
    with load(environment, seed) as told:
        environment.until_written(topics.LOYALTY)
        clear = environment.recovered()
        publish(environment.settings, poison.messages(seed))
        publish(environment.settings, poison.fuzzed(seed, _FUZZED))
        poisoned = environment.recovered()
    return judged(environment, name, told, [poisoned], f"a balance took {clear:.1f} s before")


def publish(settings: Settings, messages: Iterable[poison.Message]) -> None:
    """Put keys and values on pos-invoices."""
    client = producer(settings, "faults-publish")
    for key, value in messages:
        client.produce(settings.name_of(topics.POS_INVOICES), value, key)
        client.poll(0)
    if client.flush(60):
        raise RuntimeError("the broker did not take the messages")


def second_pipeline(name: str, environment: Environment, seed: int) -> Row:
    """A second pipeline on the same checkpoints, and settings that the checkpoints cannot bear: each refuses."""
    pipeline = environment.stack.pipeline
    with load(environment, seed) as told:
        environment.until_written(topics.LOYALTY, 20)
        second = refused(environment.settings)
        environment.halt(pipeline)  # else it would be for the first one's sake that they refuse
        changed = refused(environment.settings, LOYALTY_SHUFFLE_PARTITIONS="5")
        broken = refused(environment.settings, LOYALTY_TRIGGER_INTERVAL="soon")
        environment.resume(pipeline)
        recovery = environment.recovered()
    answers = [second, changed, broken]
    row = judged(environment, name, told, [recovery] * len(answers), f"refused: {' | '.join(answers)}")
    return replace(row, wrong_answers=row.wrong_answers + answers.count(""))


def refused(settings: Settings, **changes: str) -> str:
    """What a pipeline says before it ends with status 2; empty if it did anything else."""
    run = run_module("pipelines", settings, "--available-now", LOYALTY_METRICS_PORT=str(free_port()), **changes)
    return last_error(run) if run.returncode == REFUSED else ""


def overtaken_by_retention(name: str, environment: Environment, seed: int) -> Row:
    """Records are deleted before a stopped pipeline has read them: it refuses, says which, and goes on when told to."""
    pipeline = environment.stack.pipeline
    with load(environment, seed):
        environment.until_written(topics.LOYALTY, 20)
    environment.settle()
    environment.halt(pipeline)
    with Tills(environment.stack, seed + 1_000, RATE):
        environment.until_written(topics.POS_INVOICES, 100)
    delete_to_the_end(environment)
    refusal = refused(environment.settings)
    accepting = environment.settings.model_copy(update={"accept_data_loss": True})
    status = run_module("pipelines", accepting, "--available-now").returncode
    environment.resume(pipeline)
    recovery = environment.recovered()
    told = "retention has deleted" in refusal and status == 0
    seen = f"refused: {refusal}; told to go on: exit status {status}"
    return Row(name, 1, 0, 0, int(not told), recovery_seconds=round(recovery, 1), evidence=seen)


def delete_to_the_end(environment: Environment) -> None:
    name = environment.settings.name_of(topics.POS_INVOICES)
    ends = environment.ends(topics.POS_INVOICES)
    client = admin(environment.settings)
    for future in client.delete_records([TopicPartition(name, *each) for each in ends.items()]).values():
        future.result()


SCENARIOS: dict[str, OnAStack] = {
    f"poison, and {_FUZZED:,} damaged messages": poisoned,
    "a second pipeline, changed and broken settings": second_pipeline,
}
LAST: dict[str, OnAStack] = {"retention overtakes a stopped pipeline": overtaken_by_retention}
"""Behind it nobody can work out from the topics what must be there."""
