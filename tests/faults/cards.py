"""Processes are killed while opening balances are imported and cards are replaced."""

import subprocess
import uuid
from functools import partial

import httpx

from infra.local.folders import ROOT
from infra.local.stack import environment_of
from schemas import topics
from tests.faults.environment import Environment, NoEvidenceError
from tests.faults.report import Row
from tests.faults.scenario import Scenario
from tests.support.builders import invoice
from tests.support.kafka import highest_balances_of, publish_invoices
from tests.support.programs import LOYALTY, last_error, loyalty

_IMPORTED = 10_000
_REPLACED = 20


def import_killed(name: str, environment: Environment, seed: int) -> Row:
    """Kill ``loyalty import`` and the pipeline in the middle of an import, and start the same import again."""
    points = {f"IMPORT-{seed}-{number}": number + 1 for number in range(_IMPORTED)}
    rows = (f"{card},{each}.00,\n" for card, each in points.items())
    file = environment.directory / f"balances-{seed}.csv"
    file.write_text("card,points,expires\n" + "".join(rows), encoding="utf-8")
    words, settings = ("import", str(file), "--name", f"opening-{seed}"), environment.settings
    before = environment.written(topics.LOYALTY_COMMANDS) or 0
    importing = subprocess.Popen([LOYALTY, *words], cwd=ROOT, env=environment_of(settings), stdout=subprocess.DEVNULL)
    environment.until("imported cards", lambda: (environment.written(topics.LOYALTY_COMMANDS) or 0) > before)
    importing.kill()
    importing.wait()
    sent = (environment.written(topics.LOYALTY_COMMANDS) or 0) - before
    if sent >= _IMPORTED:
        raise NoEvidenceError("the import ended before it was killed")
    environment.until_written(topics.LOYALTY)
    environment.restart(environment.stack.pipeline)
    again = loyalty(settings, *words).returncode
    recovery = environment.recovered()
    environment.settle()
    found = highest_balances_of(settings)
    audited = loyalty(settings, "audit")
    lost = len(points.keys() - found.keys())
    wrong = sum(found[card]["TotalLoyaltyPoints"] != points[card] for card in points.keys() & found.keys())
    wrong += bool(again) + bool(audited.returncode)
    seen = f"killed after {sent:,} of {_IMPORTED:,} cards; exit status of the second import and of audit: "
    evidence = f"{seen}{again}, {audited.returncode} {last_error(audited)}"
    return Row(name, 1, lost, None, wrong, recovery_seconds=round(recovery, 1), evidence=evidence)


def replaced_while_killed(name: str, environment: Environment, seed: int) -> Row:
    """Replace cards that earn points before, during and after a kill of the pipeline. The new cards get all points."""
    cards = [(f"LOST-{seed}-{number}", f"NEW-{seed}-{number}") for number in range(_REPLACED)]
    settings = environment.settings
    _sell(environment, "before", cards)
    environment.recovered()
    keys = {old: str(uuid.uuid4()) for old, _ in cards}
    for number, (old, new) in enumerate(cards):
        _sell(environment, "meanwhile", [(old, new)])
        if number == _REPLACED // 2:
            environment.restart(environment.stack.pipeline)
        environment.until(
            f"the replacement of {old}",
            lambda old=old, new=new: _replace(environment, old, new, keys[old]),  # type: ignore[misc]
        )
    _sell(environment, "after", cards)
    recovery = environment.recovered()
    environment.settle()
    # The pipeline forwards late invoices as commands to the new cards.
    environment.until("the points of the new cards", lambda: {environment.balance(new) for _, new in cards} == {"6.00"})
    old_cards = [environment.balance(old) for old, _ in cards]
    audited = loyalty(settings, "audit")
    wrong = sum(balance is not None for balance in old_cards) + bool(audited.returncode)
    evidence = (
        f"{_REPLACED} cards with 3 invoices each; exit status of audit: {audited.returncode} {last_error(audited)}"
    )
    return Row(name, 1, None, None, wrong, recovery_seconds=round(recovery, 1), evidence=evidence)


def _sell(environment: Environment, when: str, cards: list[tuple[str, str]]) -> None:
    """Publish an invoice of 100.00, which earns 2.00 points, for each lost card."""
    publish_invoices(environment.settings, *(invoice(f"{when}-{old}", old) for old, _ in cards))


def _replace(environment: Environment, old: str, new: str, key: str) -> bool:
    url = f"{environment.stack.apis[0].url}/v1/customers/{old}/replacement"
    body = {"newCard": new, "reason": "lost", "actor": "helpdesk"}
    try:
        response = environment.http.post(url, json=body, headers={"Idempotency-Key": key}, timeout=40)
    except httpx.HTTPError:
        return False
    return response.status_code == httpx.codes.CREATED


SCENARIOS: dict[str, Scenario[Environment]] = {
    # Few injections, because each audit reads the cards of all of them.
    "kill -9 of an import and of the pipeline": Scenario(
        import_killed, partial(Environment, api_instances=1, max_offsets_per_trigger=5_000), most=4
    ),
    "cards replaced while the pipeline is killed": Scenario(replaced_while_killed, partial(Environment)),
}
