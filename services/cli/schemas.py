"""`loyalty schemas`: check changed schemas before they are published."""

from pathlib import Path
from typing import Annotated

import typer

import schemas
from services.cli.output import FAILED, MISUSED, AsJson, clear_errors, read_settings, report, stop
from services.messaging.schema_changes import broken_by
from services.messaging.schema_ids import schema_ids

app = typer.Typer(no_args_is_help=True, help="The Avro schemas of the topics.")

Files = Annotated[
    list[Path] | None,
    typer.Argument(help="Changed schemas, each named RECORD.avsc. Default: all schemas of this release."),
]


@app.callback()
def _group() -> None:
    """Keeps the word `check` in the command line. Without a callback, Typer drops the name of a single command."""


@app.command("check")
def check(files: Files = None, *, as_json: AsJson = False) -> None:
    """Check that changed schemas can read all old records, and that all old schemas can read new records.

    The exit status is 1 if a schema is not compatible. The check includes the schemas of the Schema Registry.
    """
    records = sorted({schemas.record_name(path) for path in schemas.ids().values()})
    drafts = [(file, _text_of(file)) for file in files or ()] or [
        (Path(f"{name}.avsc"), schemas.schema_text(f"{name}.avsc")) for name in records
    ]
    ids = schema_ids(read_settings())
    problems = []
    for file, text in drafts:
        name = schemas.record_name(file.name)
        if name not in records:
            known = ", ".join(records)
            stop(f"{file}: the name of the file is not RECORD.avsc: RECORD is one of {known}", MISUSED)
        with clear_errors():
            problems += [f"{file} {line}" for line in broken_by(name, text, ids)]
    lines = problems or [
        f"{', '.join(str(file) for file, _ in drafts)}: compatible in both directions with all earlier schemas"
    ]
    report({"compatible": not problems, "problems": problems}, *lines, as_json=as_json)
    if problems:
        raise typer.Exit(FAILED)


def _text_of(file: Path) -> str:
    try:
        with clear_errors():
            return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        stop(f"{file} is not UTF-8 text (byte {error.start}): save it as UTF-8", MISUSED)
