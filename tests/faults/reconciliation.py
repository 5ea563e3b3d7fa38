"""Faults that only a recomputation of accounts finds: an early erasure, and a gap in the archive."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

from infra.local.ports import free_port
from pipelines.queries.query_table import QUERIES
from schemas import topics
from services.domain.events import Erase
from services.settings import Settings
from tests.faults.environment import Environment
from tests.faults.refusals import delete_to_the_end
from tests.faults.report import Row
from tests.faults.scenario import Scenario
from tests.support.builders import invoice
from tests.support.kafka import publish_commands, publish_invoices
from tests.support.programs import last_error, loyalty, run_pipeline

_BATCH = 50
_BACKLOG = 8 * _BATCH


def erasure_before_late_invoices(name: str, environment: Environment, seed: int) -> Row:
    """Erase two customers while a backlog delays their older invoices.

    Spark limits the records of each topic in a micro-batch, so it reads the erasures some micro-batches before the
    invoices. One of the customers had an account before. A rebuild must give the same balances as the running query.
    """
    settings, pipeline = environment.settings, environment.stack.pipeline
    cards = known, unknown = f"ERASED-KNOWN-{seed}", f"ERASED-UNKNOWN-{seed}"
    publish_invoices(settings, invoice(f"before-{seed}", known, 5_000.0))
    environment.recovered()
    environment.settle()
    environment.halt(pipeline)
    publish_invoices(settings, *_invoices(f"filler-{seed}", "FILLER", _BACKLOG))
    publish_invoices(settings, invoice(f"late-1-{seed}", known, 1_000.0), invoice(f"late-2-{seed}", unknown, 1_000.0))
    publish_commands(settings, *((card, Erase(append_time=0, command_id=f"erase-{card}")) for card in cards))
    publish_invoices(settings, invoice(f"after-1-{seed}", known, 200.0), invoice(f"after-2-{seed}", unknown, 200.0))
    environment.resume(pipeline)
    environment.recovered()
    environment.settle()
    served = [environment.balance(card) for card in cards]
    audited = loyalty(settings, "audit").returncode
    environment.halt(pipeline)
    rebuilt = loyalty(settings, "rebuild").returncode
    environment.resume(pipeline)
    recovery = environment.recovered()
    environment.settle()
    rebuilt_balances = [environment.balance(card) for card in cards]
    audited_again = loyalty(settings, "audit").returncode
    wrong = sum(map(bool, (audited, rebuilt, audited_again))) + sum(
        before != after or before is None for before, after in zip(served, rebuilt_balances, strict=True)
    )
    statuses = f"exit status of audit, rebuild, audit: {audited}, {rebuilt}, {audited_again}"
    evidence = f"{statuses}; balances {served}, after the rebuild {rebuilt_balances}"
    return Row(name, 1, None, None, wrong, recovery_seconds=round(recovery, 1), evidence=evidence)


@contextmanager
def with_archive(directory: Path) -> Iterator[Environment]:
    """A stack whose pipeline does not archive, so that the fault decides when."""
    environment = Environment(directory)
    queries = [word for name in QUERIES if name != "archive" for word in ("--query", name)]
    environment.stack.pipeline = replace(environment.stack.pipeline, arguments=queries)
    with environment:
        yield environment


def hole_in_the_archive(name: str, environment: Environment, _seed: int) -> Row:
    """Retention deletes records before the archive reads them, and an operator accepts the loss.

    Then the archive has a gap between its first and last record. A rebuild from it must refuse, because it would lose
    the points of the missing events.
    """
    settings = environment.settings
    _publish_and_settle(environment, "archived")
    archived = [_archive(settings).returncode]
    _publish_and_settle(environment, "lost")
    delete_to_the_end(environment)
    _publish_and_settle(environment, "later")
    refusal = _archive(settings)
    archived.append(_archive(settings, LOYALTY_ACCEPT_DATA_LOSS="true").returncode)
    _publish_and_settle(environment, "last")
    archived.append(_archive(settings).returncode)
    delete_to_the_end(environment)
    before = environment.balance("HOLE-0")
    environment.halt(environment.stack.pipeline)
    rebuild = loyalty(settings, "rebuild", "--from", "parquet")
    environment.resume(environment.stack.pipeline)
    recovery = environment.recovered()
    after = environment.balance("HOLE-0")
    is_refused = bool(rebuild.returncode) and topics.POS_INVOICES.name in last_error(rebuild)
    wrong = (
        (refusal.returncode == 0) + sum(map(bool, archived)) + (not is_refused) + (before is None or before != after)
    )
    evidence = f"rebuild: exit status {rebuild.returncode}, {last_error(rebuild)}; balance {before}, then {after}"
    return Row(name, 1, None, None, wrong, recovery_seconds=round(recovery, 1), evidence=evidence)


def _publish_and_settle(environment: Environment, prefix: str) -> None:
    publish_invoices(environment.settings, *_invoices(prefix, "HOLE", 20))
    environment.recovered()
    environment.settle()


def _invoices(prefix: str, card: str, count: int) -> Iterable[dict[str, object]]:
    return (invoice(f"{prefix}-{number}", f"{card}-{number % 5}") for number in range(count))


def _archive(settings: Settings, **changes: str) -> CompletedProcess[str]:
    metrics = str(free_port())
    return run_pipeline(settings, "--query", "archive", "--available-now", LOYALTY_METRICS_PORT=metrics, **changes)


SCENARIOS: dict[str, Scenario[Environment]] = {
    "an erasure while older invoices lag": Scenario(
        erasure_before_late_invoices, partial(Environment, max_offsets_per_trigger=_BATCH)
    ),
    # Only one injection, because the hole stays in the archive.
    "an archive with a hole": Scenario(hole_in_the_archive, with_archive, most=1),
}
