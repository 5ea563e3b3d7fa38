"""Programs follow balances by server-sent events while the processes behind the streams are killed."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from schemas import topics
from tests.faults.environment import Environment
from tests.faults.report import Row
from tests.faults.scenario import Scenario, in_turn
from tests.faults.under_load import audited_row, load, served_cards
from tests.support.events import Subscriber
from tests.support.kafka import records_of


def followed_over_kills(name: str, environment: Environment, seed: int) -> Row:
    """Kill an API instance, the broker or the pipeline. A subscriber must receive each revision once, in order."""
    stack = environment.stack
    urls = [api.url for api in stack.apis]
    killed = in_turn([*(api.process for api in stack.apis), stack.broker.process, stack.pipeline.process], seed)
    with ExitStack() as streams:
        with load(environment, seed) as observations:
            followed = {card: streams.enter_context(Subscriber(urls, card)) for card in served_cards(seed)}
            environment.until("an event in each stream", lambda: all(each.sequences for each in followed.values()))
            environment.until_written(topics.LOYALTY, 10)
            killed.kill()
            if killed is stack.broker.process:
                stack.broker.start()
            recovery = environment.recovered()
        environment.settle()
        revisions = _revisions(environment)
        environment.until(
            "the last revision in each stream",
            lambda: all(each.sequences[-1] >= max(revisions[card]) for card, each in followed.items()),
        )
    received = {card: each.sequences for card, each in followed.items()}
    events, connections = sum(map(len, received.values())), sum(each.connections for each in followed.values())
    evidence = f"{killed.name} killed, {events:,} events in {connections} connections"
    row = audited_row(environment, name, observations, recovery, evidence)
    lost, doubled, disordered = compare(revisions, received)
    return row + Row(name, 0, lost, doubled, disordered, evidence=row.evidence)


def compare(revisions: Mapping[str, set[int]], received: Mapping[str, Sequence[int]]) -> tuple[int, int, int]:
    """The number of missing events (after the first one), of events that came twice, and of streams out of order.

    Args:
        revisions: the sequence numbers on the changelog, by card.
        received: the sequence numbers of the events in the order of arrival, by card.
    """
    lost = sum(
        len({each for each in revisions[card] if each >= seen[0]} - set(seen)) for card, seen in received.items()
    )
    doubled = sum(len(seen) - len(set(seen)) for seen in received.values())
    return lost, doubled, sum(list(seen) != sorted(seen) for seen in received.values())


def _revisions(environment: Environment) -> dict[str, set[int]]:
    """The sequence numbers of each card on the changelog of balances. Kafka has not compacted it yet."""
    found: dict[str, set[int]] = {}
    for balance in records_of(environment.settings, topics.LOYALTY_BALANCES):
        found.setdefault(balance["CustomerCardNo"], set()).add(balance["Sequence"])
    return found


SCENARIOS: dict[str, Scenario[Environment]] = {
    "event streams over kills of all processes": Scenario(followed_over_kills)
}
