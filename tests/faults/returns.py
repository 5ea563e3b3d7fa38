"""Purchases in one store, and their returns and exchanges in another, while the pipeline is killed."""

from functools import partial
from itertools import islice

from infra.demo.comparison import Nature
from schemas import topics
from schemas.topics import POS_INVOICES
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.simulation import Options, Simulation
from services.settings import Settings
from tests.faults.auditor import audit
from tests.faults.environment import Environment
from tests.faults.report import Row
from tests.faults.scenario import Scenario
from tests.support.kafka import publish, records_of
from tests.support.programs import loyalty

_MESSAGES = 300


def crossing_returns(name: str, environment: Environment, seed: int) -> Row:
    """Kill the pipeline in the middle of a day. It reads some returns before and some after their purchases.

    Some returns have no card or another card, and some tills are offline for hours.

    There are no commands, so the oracle of the demo computes the accounts. ``loyalty audit`` computes them, too.
    """
    options = Options(_MESSAGES, seed, prime=0.9, customers=50, stores=2, returns=0.2, exchanges=0.1, offline=0.1)
    settings = environment.settings
    messages = Simulation(options, schema_ids(settings)).messages()

    def publish_half() -> None:
        publish(settings, POS_INVOICES, [(each.key, each.value) for each in islice(messages, _MESSAGES // 2)])

    forwarded_before = _forwarded(settings)
    publish_half()
    environment.until_written(topics.LOYALTY, 20)
    environment.restart(environment.stack.pipeline)
    publish_half()
    recovery = environment.recovered()
    environment.settle()
    verdict = audit(settings, environment.stack.apis[0].url, ledger=environment.ledger)
    audited = loyalty(settings, "audit").returncode
    forwarded = _forwarded(settings) - forwarded_before
    return Row(
        fault=name,
        injected=1,
        lost=verdict.count(Nature.LOST) + (not forwarded),
        doubled=verdict.count(Nature.DOUBLED),
        wrong_answers=verdict.count(Nature.WRONG) + bool(audited),
        again=environment.newly_repeated(verdict.again),
        recovery_seconds=round(recovery, 1),
        evidence=f"{verdict.invoices:,} invoices, {forwarded} returns to other accounts: {verdict}; exit status of "
        f"audit: {audited}",
    )


def _forwarded(settings: Settings) -> int:
    """The number of returns to other accounts since the start of the stack."""
    commands = {each["CommandID"]: each["Kind"] for each in records_of(settings, topics.LOYALTY_COMMANDS)}
    return [*commands.values()].count("forward")


SCENARIOS: dict[str, Scenario[Environment]] = {
    "returns: kill -9 of the pipeline while they cross their purchases": Scenario(
        crossing_returns, partial(Environment, api_instances=1)
    )
}
