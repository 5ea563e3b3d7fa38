"""The targets for the command line: arguments of all commands, in this process and in new processes.

The first target only parses the arguments. The second one also runs commands that need no broker.
"""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import typer

from infra.local.folders import ROOT
from services.cli import app
from tests.fuzz.target import DefectError, Feed, FuzzTarget, Outcome

_TEXTS = (
    *("", " ", "-", "--", "---", "-h", "--help", "--json", "--no-such", "--name=", "=", "--=", "-1", "0", "1", "1e3"),
    *("nan", "inf", "-inf", "1_0", "9" * 400, "x" * 5_000, "\u00e9", "\u0660", "\udcff", "a\nb", "%s", "{}", "$HOME"),
    *("../..", "/dev/null", "/proc/self/mem", "2026-01-31", "2026-02-30", "0:42", "0:-1", "4711", "A", "."),
    *("file.yaml", "file.csv", "file.jsonl"),
)
_LOCAL = (
    *(("programme", "check"), ("conformance",), ("settings",), ("sql", "--list"), ("schemas", "check")),
    *(("stores", "publish"), ("doctor",)),
)
_STATUSES = range(3)
"""The exit statuses that docs/reference/cli.md names."""

_UsageError: Any = typer.BadParameter.__base__
"""Typer has no public name for it."""

_NOBODY = "127.0.0.1:9"
"""An address at which no broker answers."""


@cache
def _group() -> Any:
    return typer.main.get_command(app)


def _paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The words of each command, with its options. Without those of completion, which change files of the user."""
    options = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    yield path, [name for name in options if name.startswith("-") and not name.endswith("-completion")]
    for name, each in getattr(command, "commands", {}).items():
        yield from _paths(each, (*path, name))


def arguments(rng: Random) -> Iterator[list[str]]:
    """The words of a command, then its options and odd texts."""
    paths = [*_paths(_group())]
    while True:
        path, options = rng.choice(paths)
        words = [*path]
        for _ in range(rng.randrange(6)):
            words.append(rng.choice(options) if options and rng.random() < 0.5 else rng.choice(_TEXTS))
            if rng.random() < 0.1:
                words[-1] += "=" + rng.choice(_TEXTS)
        if rng.random() < 0.05:
            rng.shuffle(words)
        yield words


@contextmanager
def prepare_arguments() -> Iterator[Feed]:
    """Parses arguments as the command line does. Runs no command."""
    group = _group()

    # One stream for all inputs, because Typer keeps a reference to each stream that was stderr.
    printed = io.StringIO()

    def feed(words: list[str]) -> Outcome:
        printed.seek(0)
        printed.truncate()
        with redirect_stdout(printed), redirect_stderr(printed):
            try:
                _parse(group, words)
            except _UsageError as error:
                # Without arguments the message is empty, and ``show`` prints the help.
                if not error.format_message():
                    error.show()
                    if not printed.getvalue():
                        raise DefectError(f"no message: {error!r}") from error
                return Outcome.REFUSED
            except typer.Exit as end:  # for example --help
                if end.exit_code not in _STATUSES or not printed.getvalue():
                    raise DefectError(f"exit status {end.exit_code} with {printed.getvalue()!r}") from end
        return Outcome.ACCEPTED

    yield feed


def _parse(command: Any, words: list[str]) -> None:
    context, name = None, "loyalty"
    while command is not None:
        context = command.make_context(name, [*words], parent=context)
        if not hasattr(command, "commands"):
            return
        rest = [*context._protected_args, *context.args]
        if not rest:
            return  # the group runs, and says that a command is missing
        name, command, words = command.resolve_command(context, rest)


def local_arguments(rng: Random) -> Iterator[list[str]]:
    """Arguments of commands that need no broker."""
    known = dict(_paths(_group()))
    while True:
        path = rng.choice(_LOCAL)
        options = known.get(path, [])
        words = [rng.choice(_TEXTS if rng.random() < 0.7 else options or _TEXTS) for _ in range(rng.randrange(4))]
        yield [*path, *(word for word in words if "\0" not in word)]


@contextmanager
def prepare_processes() -> Iterator[Feed]:
    """Runs each input in a new process. The command may fail only with an error message, and without a traceback."""
    with TemporaryDirectory(prefix="fuzz-") as folder:
        Path(folder, "file.yaml").write_text("loyalty-factor: 0.02\n", encoding="utf-8")
        Path(folder, "file.csv").write_text("card,points,expires\n4711,1,\n", encoding="utf-8")
        Path(folder, "file.jsonl").write_text('{"InvoiceNumber": "1"}\n', encoding="utf-8")
        environment = {
            **os.environ,
            "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": _NOBODY,
            "HOME": folder,
            "PYTHONPATH": str(ROOT),
        }

        def feed(words: list[str]) -> Outcome:
            command = [sys.executable, "-c", "from services.cli import app; app(prog_name='loyalty')", *words]
            run: Any = subprocess.run(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
            text = run.stderr.decode(errors="replace")
            is_silent = run.returncode and not text + run.stdout.decode()
            if run.returncode not in _STATUSES or "Traceback" in text or is_silent:
                raise DefectError(f"exit status {run.returncode}: {text[-1_500:]}")
            return Outcome.REFUSED if run.returncode else Outcome.ACCEPTED

        yield feed


TARGETS = (
    FuzzTarget("arguments", arguments, prepare_arguments, chunk=5_000),
    FuzzTarget("processes", local_arguments, prepare_processes, chunk=20, share=0.001),
)
