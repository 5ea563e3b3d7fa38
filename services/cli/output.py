"""Settings, errors and output of all commands."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, NoReturn, TextIO

import orjson
import typer
from confluent_kafka import KafkaException
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from services import settings
from services.audit_trail import announce, operator
from services.errors import UserError
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.settings import Settings

FAILED = 1
MISUSED = 2
INTERRUPTED = 130

_NO_LIMIT = 1_000_000
"""Columns of a console that cuts and wraps no text. Rich makes a table only as wide as its content."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except tab and line feed. The escape sequences of a terminal begin with them."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, and nothing else.")]


def stop(message: str, code: int = FAILED) -> NoReturn:
    """End the command with one line on stderr."""
    error = Text("error:", style="red")
    console(stderr=True).print(error, " ".join(message.split()), highlight=False, soft_wrap=True)
    raise typer.Exit(code)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Print errors that the user can solve as one line. Other errors are defects and keep their tracebacks."""
    try:
        yield
    except UserError as error:
        stop(str(error), error.exit_status)
    except KafkaException as error:
        stop(f"Kafka failed: {error.args[0].str()}")
    except OSError as error:
        stop(f"{error.filename or 'I/O'}: {error.strerror or error}")


def announce_or_warn(action: str, settings: Settings, **details: str) -> UserError | None:
    """Record in the audit trail that a command begins. For commands that can work without Kafka.

    See ``announce`` for the arguments. If Kafka does not take the record, this function prints the record to stderr,
    and the command continues. Its user has the password of the database or the rights on the files, and could do the
    same without this program (decision 38).

    Returns the error, or None if Kafka has the record.
    """
    try:
        announce(action, settings, **details)
    except (PublishError, SchemaRegistryUnavailableError) as error:
        record = orjson.dumps({"actor": operator(), "action": action, **details}).decode()
        typer.echo(f"warning: the topic audit-trail has no record of this command {record}: {error}", err=True)
        return error
    return None


class _SafeConsole(Console):
    """Prints U+FFFD for control characters. A terminal obeys escape sequences, also those in a text of a
    till or of a caller.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_CONTROL.sub("\ufffd", text), **options)


def console(*, stderr: bool = False) -> Console:
    """The console for results, or for messages (``stderr``). If another program reads it, it cuts no text.

    It prints the other characters unchanged. By default Rich prints ``:a:`` as an emoji and ``[red]`` as a colour.
    """
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return _SafeConsole(stderr=stderr, width=None if is_terminal else _NO_LIMIT, emoji=False, markup=False)


def open_input(name: str, opened: ExitStack) -> IO[bytes]:
    """Open a file for reading. The name ``-`` means stdin. The stack closes the file."""
    return sys.stdin.buffer if name == "-" else opened.enter_context(Path(name).open("rb"))


def variable(setting: str) -> str:
    """The environment variable of a setting."""
    return f"{Settings.model_config['env_prefix']}{setting.upper()}"


def read_settings() -> Settings:
    """The settings of the environment. An error names the wrong variables in one line."""
    with clear_errors():
        return settings.read_settings()


def report(value: Any, *text: RenderableType, as_json: bool) -> None:
    """Print the result of a command: with ``--json`` the value as one JSON object, otherwise the texts or the table."""
    if as_json:
        print_json(value)
        return
    with stdout():
        for line in text:
            console().print(line, highlight=False, soft_wrap=isinstance(line, str))


def print_json(value: Any) -> None:
    with stdout() as file:
        file.write(orjson.dumps(value, default=str).decode() + "\n")


@contextmanager
def stdout() -> Iterator[TextIO]:
    """The stream for a result. If a write fails, for example because the disk is full, the command ends."""
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # The reader has closed its end, as `head` does. Typer ends the command without a message.
    except OSError as error:
        # At its end, Python writes the rest of the buffer. That would print a second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        stop(f"stdout: {error.strerror}: the output is not complete. Free disk space, or write to another place")


def table(*columns: str, rows: Iterable[Iterable[object]], title: str | None = None) -> Table:
    """A table for ``report``. An empty cell is None."""
    found = Table(*(Column(name, overflow="fold") for name in columns), title=title, show_header=any(columns))
    for row in rows:
        found.add_row(*("" if cell is None else str(cell) for cell in row))
    return found


def figures(values: Mapping[str, object]) -> Table:
    """A table for ``report`` with a row for each value. Integers have separators of thousands."""
    rows = (
        (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else value) for name, value in values.items()
    )
    return table("", "", rows=rows)


def warn_of_skipped(skipped: Mapping[str, Mapping[str, int]]) -> None:
    """Print for each topic how many records could not be decoded. ``skipped`` has their number by topic and reason."""
    for name, reasons in skipped.items():
        (reason, _), *_ = sorted(reasons.items(), key=lambda each: -each[1])
        line = f"skipped {sum(reasons.values())} records of {name} that cannot be decoded, for example: {reason}"
        console(stderr=True).print(line, highlight=False, soft_wrap=True)


@contextmanager
def progress(title: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal. Yields a function that takes the number of completed items."""
    stderr = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TaskProgressColumn(show_speed=True))
    with Progress(*columns, TimeElapsedColumn(), console=stderr, disable=quiet or not stderr.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
