"""`loyalty audit`, `rebuild` and `returns` replace their process by the Spark programs, with the same options."""

import ast
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli import app, processes

ROOT = Path(__file__).parents[4]
DEFAULTS = ["--from=topics", "--show=20"]
LEFT_OUT = ["--without=ledger", "--without=balances"]


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["audit"], ["pipelines.reconciliation.audit", *DEFAULTS]),
        (
            ["audit", "--from", "parquet", "--api", "http://x:1", "--without", "state", "--json"],
            [
                "pipelines.reconciliation.audit",
                "--from=parquet",
                "--show=20",
                "--api=http://x:1",
                "--without=state",
                "--json",
            ],
        ),
        (
            ["audit", "--without", "ledger", "--without", "balances"],
            ["pipelines.reconciliation.audit", *DEFAULTS, *LEFT_OUT],
        ),
        (["returns", "--json"], ["pipelines.reconciliation.waiting_returns", "--json"]),
        (["rebuild"], ["pipelines.reconciliation.rebuild", *DEFAULTS]),
        (
            ["rebuild", "--from", "parquet", "--show", "7", "--without-ledger", "--json", "--accept-lost-events"],
            [
                "pipelines.reconciliation.rebuild",
                "--from=parquet",
                "--show=7",
                "--without-ledger",
                "--json",
                "--accept-lost-events",
            ],
        ),
    ],
)
def test_options_are_passed_to_the_program(
    command: list[str], program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the CLI becomes `python -m …`."""
    started: list[list[str]] = []

    def execv(_: str, arguments: list[str]) -> None:
        started.append(arguments)
        raise SystemExit

    monkeypatch.setattr(processes.os, "execv", execv)
    monkeypatch.setattr(processes, "announce", lambda *_, **__: None)
    CliRunner().invoke(app, command)

    assert [[sys.executable, "-m", *program]] == started


@pytest.mark.parametrize("command", [["audit", "--from", "memory"], ["audit", "--without", "events"], ["rebuild", "x"]])
def test_wrong_options_start_nothing(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown option is refused before Spark starts."""
    monkeypatch.setattr(processes.os, "execv", None)
    assert 2 == CliRunner().invoke(app, command).exit_code


@pytest.mark.parametrize(
    ("name", "program"), [("audit", "audit"), ("rebuild", "rebuild"), ("returns", "waiting_returns")]
)
def test_the_program_has_the_same_parameters(name: str, program: str) -> None:
    """The main function of the Spark program has the parameters of the command."""
    programs = (
        (ROOT / "services" / "cli" / "audit.py", name),
        (ROOT / "pipelines" / "reconciliation" / f"{program}.py", "main"),
    )
    parameters = [
        [(each.arg, ast.unparse(each.annotation)) for each in function.args.kwonlyargs if each.annotation]
        for path, wanted in programs
        for function in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(function, ast.FunctionDef) and function.name == wanted
    ]
    assert 2 == len(parameters)
    assert parameters[0] == parameters[1]
