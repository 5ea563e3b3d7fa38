"""Input and starts that the system must refuse: malformed messages, lost records, a second pipeline, wrong settings."""

from dataclasses import replace

from confluent_kafka import TopicPartition

from infra.local.ports import free_port
from schemas import topics
from services.messaging.clients import admin
from services.settings import Settings
from tests.faults import poison
from tests.faults.environment import Environment
from tests.faults.load import Tills
from tests.faults.report import Row
from tests.faults.under_load import RATE, OnAStack, audited_row, load
from tests.support.kafka import publish
from tests.support.programs import REFUSED, last_error, run_module

_FUZZED = 3_000


def poisoned(name: str, environment: Environment, seed: int) -> Row:
    """Publish every kind of malformed message, and thousands of randomly damaged ones, among valid invoices."""
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY)
        clear = environment.recovered()
        publish(environment.settings, topics.POS_INVOICES, poison.messages(seed))
        publish(environment.settings, topics.POS_INVOICES, poison.fuzzed(seed, _FUZZED))
        poisoned = environment.recovered()
    return audited_row(environment, name, observations, [poisoned], f"a balance took {clear:.1f} s before")


def second_pipeline(name: str, environment: Environment, seed: int) -> Row:
    """Start a second pipeline on the same checkpoints, and pipelines with wrong settings. Each must refuse."""
    pipeline = environment.stack.pipeline
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        second = refused(environment.settings)
        environment.halt(pipeline)  # otherwise they would refuse because of the first pipeline
        changed = refused(environment.settings, LOYALTY_SHUFFLE_PARTITIONS="5")
        broken = refused(environment.settings, LOYALTY_TRIGGER_INTERVAL="soon")
        environment.resume(pipeline)
        recovery = environment.recovered()
    answers = [second, changed, broken]
    row = audited_row(environment, name, observations, [recovery] * len(answers), f"refused: {' | '.join(answers)}")
    return replace(row, wrong_answers=row.wrong_answers + answers.count(""))


def refused(settings: Settings, **changes: str) -> str:
    """The error of a pipeline that ends with status 2. Empty if it ended otherwise."""
    run = run_module("pipelines", settings, "--available-now", LOYALTY_METRICS_PORT=str(free_port()), **changes)
    return last_error(run) if run.returncode == REFUSED else ""


def overtaken_by_retention(name: str, environment: Environment, seed: int) -> Row:
    """Delete records that a stopped pipeline has not read. It must refuse, unless the setting accepts the loss."""
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
    is_right = "retention has deleted" in refusal and status == 0
    seen = f"refused: {refusal}; with accept_data_loss: exit status {status}"
    return Row(name, 1, 0, 0, int(not is_right), recovery_seconds=round(recovery, 1), evidence=seen)


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
"""After this fault the topics no longer determine the outputs."""
