"""Input and starts that the system must refuse: malformed messages, lost records, a second pipeline, wrong settings."""

from dataclasses import replace
from functools import partial

from confluent_kafka import TopicPartition

from infra.local.ports import free_port
from schemas import topics
from services.messaging.clients import admin
from services.settings import Settings
from tests.faults import poison
from tests.faults.environment import Environment
from tests.faults.load import Tills
from tests.faults.report import Row
from tests.faults.scenario import Scenario, in_turn
from tests.faults.under_load import RATE, audited_row, load
from tests.support.kafka import publish
from tests.support.programs import REFUSED, last_error, run_pipeline

_FUZZED = 3_000


def poisoned(name: str, environment: Environment, seed: int) -> Row:
    """Publish all kinds of malformed messages, and thousands of randomly damaged ones, among valid invoices."""
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY)
        clear = environment.recovered()
        publish(environment.settings, topics.POS_INVOICES, poison.messages(seed))
        publish(environment.settings, topics.POS_INVOICES, poison.fuzzed(seed, _FUZZED))
        poisoned = environment.recovered()
    return audited_row(environment, name, observations, poisoned, f"a balance took {clear:.1f} s before")


def second_pipeline(name: str, environment: Environment, seed: int) -> Row:
    """Start a second pipeline on the same checkpoints, or a pipeline with a wrong setting. It must refuse."""
    changes: dict[str, str] = in_turn(
        [{}, {"LOYALTY_SHUFFLE_PARTITIONS": "5"}, {"LOYALTY_TRIGGER_INTERVAL": "soon"}], seed
    )
    pipeline = environment.stack.pipeline
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        if changes:
            environment.halt(pipeline)  # otherwise the new pipeline would refuse to start because this one runs
        refusal = refused(environment.settings, **changes)
        if changes:
            environment.resume(pipeline)
        recovery = environment.recovered()
    row = audited_row(environment, name, observations, recovery, f"refused: {refusal}")
    return replace(row, wrong_answers=row.wrong_answers + (not refusal))


def refused(settings: Settings, **changes: str) -> str:
    """Run a pipeline. Returns its error if it ends with status 2, and otherwise an empty text."""
    run = run_pipeline(settings, "--available-now", LOYALTY_METRICS_PORT=str(free_port()), **changes)
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
    status = run_pipeline(accepting, "--available-now").returncode
    environment.resume(pipeline)
    recovery = environment.recovered()
    is_right = "retention has deleted" in refusal and status == 0
    seen = f"refused: {refusal}; with accept_data_loss: exit status {status}"
    return Row(name, 1, None, None, int(not is_right), recovery_seconds=round(recovery, 1), evidence=seen)


def delete_to_the_end(environment: Environment) -> None:
    name = environment.settings.name_of(topics.POS_INVOICES)
    ends = environment.ends(topics.POS_INVOICES)
    client = admin(environment.settings)
    for future in client.delete_records([TopicPartition(name, *each) for each in ends.items()]).values():
        future.result()


SCENARIOS: dict[str, Scenario[Environment]] = {
    f"poison, and {_FUZZED:,} damaged messages": Scenario(poisoned),
    "a second pipeline, changed and broken settings": Scenario(second_pipeline),
    # After this fault the outputs no longer follow from the topics, so it needs a separate stack.
    "retention overtakes a stopped pipeline": Scenario(overtaken_by_retention, partial(Environment)),
}
