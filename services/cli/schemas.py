"""`loyalty schemas`: whether a changed schema may be published."""

from pathlib import Path
from typing import Annotated

import typer

import schemas
from services.cli.output import FAILED, MISUSED, AsJson, clear_errors, console, print_json, read_settings, stop
from services.messaging.schema_changes import broken_by
from services.messaging.schema_ids import SchemaRegistryUnavailableError, schema_ids

app = typer.Typer(no_args_is_help=True, help="The schemas of what is on the topics.")

Files = Annotated[
    list[Path] | None, typer.Argument(help="Changed schemas, NAME.avsc each. Default: all that this release writes.")
]


@app.callback()
def _group() -> None:
    """A group from the start, so that `check` stays a command of its own."""


@app.command("check")
def check(files: Files = None, *, as_json: AsJson = False) -> None:
    """Say what changed schemas would break: readers of what was ever written, and of what they write.

    Ends with 1 if anything is, before it is published. The Schema Registry of the settings is asked too.
    """
    records = sorted({schemas.record_name(path) for path in schemas.ids().values()})
    drafts = {file.name: _text_of(file) for file in files or ()} or {
        f"{name}.avsc": schemas.schema_text(f"{name}.avsc") for name in records
    }
    ids = schema_ids(read_settings())
    problems = []
    for file, text in drafts.items():
        name = schemas.record_name(file)
        if name not in records:
            stop(f"{file}: no record is called {name}; there are {', '.join(records)}", MISUSED)
        try:
            problems += [f"{file} {line}" for line in broken_by(name, text, ids)]
        except SchemaRegistryUnavailableError as error:
            stop(str(error))
    if as_json:
        print_json({"compatible": not problems, "problems": problems})
    else:
        for line in problems or [f"{', '.join(drafts)}: compatible both ways with all that was ever written"]:
            console().print(line, highlight=False, markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(FAILED)


def _text_of(file: Path) -> str:
    with clear_errors():
        return file.read_text(encoding="utf-8")
