"""Purchases in one store, and their returns and exchanges in another, while the pipeline is killed."""

from itertools import islice
from pathlib import Path

from infra.demo.comparison import Nature
from schemas import topics
from schemas.topics import POS_INVOICES
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.simulation import Options, Simulation
from tests.faults.alone import Scenario
from tests.faults.auditor import audit
from tests.faults.environment import Environment
from tests.faults.report import Row
from tests.support.kafka import publish, records_of
from tests.support.programs import loyalty

_KILLS, _BETWEEN = 2, 250
"""The number of kills, and of messages before each of them."""


def crossing_returns(name: str, directory: Path, seed: int) -> Row:
    """Kill the pipeline in the middle of a day whose returns are read before and after their purchases.

    Some returns have no card or another card, and some tills are offline for hours.

    There are no commands, so the oracle of the demo computes the accounts. ``loyalty audit`` computes them too.
    """
    options = Options(
        _KILLS * _BETWEEN, seed, prime=0.9, customers=50, stores=2, returns=0.2, exchanges=0.1, offline=0.1
    )
    recoveries = []
    with Environment(directory, api_instances=1) as environment:
        settings = environment.settings
        messages = Simulation(options, schema_ids(settings)).messages()
        for _ in range(_KILLS):
            publish(settings, POS_INVOICES, [(each.key, each.value) for each in islice(messages, _BETWEEN)])
            environment.until_written(topics.LOYALTY, 20)
            environment.restart(environment.stack.pipeline)
            recoveries.append(environment.recovered())
        environment.settle()
        verdict = audit(settings, environment.stack.apis[0].url)
        audited = loyalty(settings, "audit").returncode
        commands = {each["CommandID"]: each["Kind"] for each in records_of(settings, topics.LOYALTY_COMMANDS)}
    forwarded = [*commands.values()].count("forward")
    return Row(
        fault=name,
        injected=len(recoveries),
        lost=verdict.count(Nature.LOST) + (not forwarded),
        doubled=verdict.count(Nature.DOUBLED),
        wrong_answers=verdict.count(Nature.WRONG) + bool(audited),
        again=verdict.again,
        recovery_seconds=round(max(recoveries), 1),
        evidence=f"{verdict.invoices:,} invoices, {forwarded} returns to other accounts: {verdict}; exit status of "
        f"audit: {audited}",
    )


SCENARIOS: dict[str, Scenario] = {"returns: kill -9 of the pipeline while they cross their purchases": crossing_returns}
