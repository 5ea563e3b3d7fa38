"""The report of an audit: its exit status, its texts, its record, and which differences have settled."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipelines.reconciliation import audit
from pipelines.reconciliation import report as module
from pipelines.reconciliation.report import CustomerDifference, Report, lines_of, texts_of
from services.audit.facts import COMPARED, Source
from services.messaging.publishing import PublishError

FOUND = CustomerDifference("CARD", "ledger", "entry 2 (earned 2.00) is missing")


@pytest.mark.parametrize(
    ("report", "status", "outcome"),
    [
        (Report(), 0, "agrees"),
        (Report(differences=[FOUND], unreadable=["the ledger: away"], not_recomputed=1), 1, "differs"),
        (Report(unreadable=["the ledger: away"]), 2, "incomplete"),
        (Report(changing=["CARD"]), 2, "incomplete"),
        (Report(not_recomputed=1), 2, "incomplete"),
        (Report(notes=["before noon"]), 0, "agrees"),
    ],
)
def test_only_an_audit_that_has_compared_everything_agrees(report: Report, status: int, outcome: str) -> None:
    """A scheduled audit reports its status only. A difference counts more than what could not be read."""
    assert (status, outcome) == (report.status, report.run(0, str)["Outcome"])


def test_a_record_has_a_limited_size_and_names_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic audit-runs keeps it for 400 days, and an erasure does not reach it."""
    monkeypatch.setattr(module, "_MOST_FINDINGS", 2)
    monkeypatch.setattr(module, "now", lambda: 7)
    report = Report(differences=[FOUND] * 3, changing=["CARD"] * 5, unreadable=["the ledger: away"])
    run = report.run(5, lambda card: f"p-{card}")
    assert (3, 2, 5, 7) == (run["Differences"], len(run["Findings"]), run["StartedTime"], run["EndedTime"])
    changing = "customer p-CARD changes faster than it can be compared"
    more = "3 more customers change faster than they can be compared"
    assert ["the ledger: away", changing, changing, more] == run["Unreadable"]
    report.changing = ["CARD"] * 2
    assert changing == report.run(5, lambda card: f"p-{card}")["Unreadable"][-1]
    assert {"p-CARD"} == {each["Customer"] for each in run["Findings"]}


def test_the_terminal_shows_what_was_not_compared() -> None:
    """A source without a fact was compared. A source that the report does not have was not."""
    report = Report(compared={Source.LEDGER: 0}, changing=["CARD"], unreadable=["the API: away"], notes=["late"])
    table, *lines = texts_of(report, 9)
    cells: dict[Any, Any] = dict(zip(*(column.cells for column in table.columns), strict=True))  # type: ignore[union-attr]
    assert ["0" if each is Source.LEDGER else "not compared" for each in COMPARED] == [
        cells[f"compared: {each}"] for each in COMPARED
    ]
    changing = "not read: CARD changes faster than it can be compared"
    assert ["not read: the API: away", changing, "note: late"] == lines


@pytest.mark.parametrize(
    ("limit", "more"), [(3, []), (2, ["… and 1 more differences (--show)"]), (0, ["… and 3 more differences (--show)"])]
)
def test_the_last_line_says_how_many_differences_are_hidden(limit: int, more: list[str]) -> None:
    shown = ["CARD: ledger: entry 2 (earned 2.00) is missing"] * limit
    assert shown + more == [*lines_of([FOUND] * 3, limit)]


def audited(monkeypatch: pytest.MonkeyPatch, *rounds: dict[str, str]) -> tuple[Report, list[Any]]:
    """The report of an audit, and the customers that each round compares.

    Args:
        rounds: by pseudonym, the versions of the customers whose sources have not progressed equally far.
    """
    asked: list[Any] = []

    def compare(*given: Any, **_: object) -> dict[str, tuple[str, list[CustomerDifference]]]:
        asked.append([*given[4]] if given[4:] else None)
        found = rounds[min(len(asked), len(rounds)) - 1]
        return {name: (version, [CustomerDifference(name, "ledger", "x")]) for name, version in found.items()}

    monkeypatch.setattr(audit, "_round", compare)
    monkeypatch.setattr(audit.time, "sleep", lambda _: None)
    context: Any = SimpleNamespace()
    return audit.audit(context, "http://api", (), archive=False), asked


def test_a_difference_that_stays_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared twice. A customer whose difference has settled is not reported."""
    report, asked = audited(monkeypatch, {"A": "1", "B": "1"}, {"A": "1"}, {"A": "1"})
    assert (["A"], []) == ([each.whose for each in report.differences], report.changing)
    assert [None, ["A", "B"], ["A"]] == asked


def test_a_customer_who_changes_all_the_time_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit ends. Another customer with the same difference as before is reported."""
    rounds = [{"A": f"{number}", "B": "1"} for number in range(audit.ROUNDS + 2)]
    report, asked = audited(monkeypatch, *rounds)
    assert (["B"], ["A"]) == ([each.whose for each in report.differences], report.changing)
    assert audit.ROUNDS == len(asked)


def test_an_audit_without_waiting_customers_has_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    report, asked = audited(monkeypatch, {})
    assert (0, [None]) == (report.status, asked)


@pytest.mark.parametrize(("differences", "status"), [([], 0), ([FOUND], 1)])
def test_the_exit_status_does_not_need_kafka(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], differences: list[Any], status: int
) -> None:
    """Kafka can go away after the comparison. The result is printed, and the status is that of the result."""

    def fail(*_: object) -> None:
        raise PublishError("no broker")

    monkeypatch.setattr(audit, "open_context", MagicMock())
    monkeypatch.setattr(audit, "pseudonymize", lambda _: str)
    monkeypatch.setattr(audit, "audit", lambda *_, **__: Report(differences=differences))
    monkeypatch.setattr(audit, "publish_run", fail)
    with pytest.raises(audit.typer.Exit) as ended:
        audit.main()
    printed = capsys.readouterr()
    assert (status, True) == (ended.value.exit_code, "not in Kafka: no broker" in printed.err)
    assert "accounts" in printed.out
