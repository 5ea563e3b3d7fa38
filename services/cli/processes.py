"""Commands whose programs replace the process of the CLI: `loyalty up`, `down`, `demo`, `pipeline`, `api` and others.

The CLI may not import the pipelines or the API. The new program keeps the process id, so it receives signals and a
supervisor sees its exit status.
"""

import os
import sys
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated, NoReturn

import typer

from services.audit_trail import announce
from services.cli.output import MISUSED, AsJson, clear_errors, read_settings, report, stop
from services.settings import Settings

FORWARD_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that forwards all options, also ``--help``, to its program."""


AsJsonLines = Annotated[bool, typer.Option("--json", help="Write the log as JSON lines (LOYALTY_LOG_FORMAT=json).")]
Folder = Annotated[str | None, typer.Option("--dir", help="Folder of the data. Default: the user's data folder (XDG).")]


def up(directory: Folder = None, *, as_json: AsJson = False) -> None:
    """Start Kafka, the pipeline, one API instance and the ledger on this machine."""
    replace_process("infra.local", ["up", *_options(directory, as_json=as_json)])


def down(directory: Folder = None, *, as_json: AsJson = False) -> None:
    """Stop what `loyalty up` has started. The data stays."""
    replace_process("infra.local", ["down", *_options(directory, as_json=as_json)])


def demo(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Run a trading day through a stack of its own, and check all results. `loyalty demo --help` shows its options."""
    replace_process("infra.demo", [*context.args, *_options(None, as_json=as_json)])


def pipeline(context: typer.Context, *, as_json: AsJsonLines = False) -> None:
    """Run the Spark pipeline. `loyalty pipeline --help` shows its options."""
    replace_process("pipelines", context.args, log_json=as_json)


def api(context: typer.Context, *, as_json: AsJsonLines = False) -> None:
    """Run one API instance. `loyalty api --help` shows its options."""
    replace_process("api", context.args, log_json=as_json)


class ExportTask(StrEnum):
    """What `loyalty export` does."""

    RUN = "run"
    BACKFILL = "backfill"
    MAINTAIN = "maintain"


def export(
    context: typer.Context,
    task: Annotated[
        ExportTask,
        typer.Argument(
            help="run: export new records. backfill: read the topic from its beginning, and add what the Delta table "
            "lacks. maintain: merge small files of the Delta table, and delete files that it has not needed for a week."
        ),
    ] = ExportTask.RUN,
    *,
    to: Annotated[str | None, typer.Option(help="Folder of the exported files. Any Hadoop URI.")] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Keep running. Without it, export the present records and end.")
    ] = False,
    as_json: AsJsonLines = False,
) -> None:
    """Export the masked invoices to Parquet files or to a Delta table (LOYALTY_EXPORT_FORMAT)."""
    settings = read_settings()
    if task is ExportTask.MAINTAIN:
        _maintain(settings.model_copy(update={"export_dir": to or settings.export_dir}), as_json=as_json)
        return
    until = [] if continuous else ["--available-now"]
    folder = to or settings.export_dir
    announced("export", to=folder)
    again = ["--backfill"] if task is ExportTask.BACKFILL else []
    replace_process("pipelines", ["--query", "export", "--to", folder, *until, *again, *context.args], log_json=as_json)


def _maintain(settings: Settings, *, as_json: bool) -> None:
    try:
        from services.sql.files import NoExportError  # noqa: PLC0415  # not installed everywhere
        from services.sql.maintenance import maintain  # noqa: PLC0415
    except ModuleNotFoundError as error:
        stop(f"{error.name} is not installed: install retail-loyalty[sql]")
    try:
        done = maintain(settings)
    except NoExportError as error:
        stop(str(error))
    text = f"{settings.export_dir}: merged {done.merged} files into {done.written}, deleted {done.deleted} old files"
    report(done._asdict(), text, as_json=as_json)


def archive(context: typer.Context, *, as_json: AsJsonLines = False) -> None:
    """Append the new events of accounts to the Parquet archive, with pseudonyms instead of cards."""
    announced("archive")
    replace_process("pipelines", ["--query", "archive", "--available-now", *context.args], log_json=as_json)


def webhooks(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Read the endpoints and their secrets, print the endpoints, and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write the log as JSON lines, and with --check one JSON object.")
    ] = False,
) -> None:
    """Deliver loyalty notifications to the endpoints of LOYALTY_WEBHOOKS_FILE."""
    options = ["--check"] * check + ["--json"] * (check and as_json)
    replace_process("services.webhooks", options, log_json=as_json)


def doctor(directory: Folder = None, *, as_json: AsJson = False) -> None:
    """Check whether this machine can run the system: Java, memory, ports, disk and clock. Say what to do.

    The exit status is 1 if something must be done first.
    """
    replace_process("infra.doctor", _options(directory, as_json=as_json))


def announced(command: str, **details: str) -> None:
    """Write to the audit trail that a command begins, which another program will execute."""
    with clear_errors():
        announce(f"loyalty {command}", read_settings(), **details)


def _options(directory: str | None, *, as_json: bool) -> list[str]:
    return [f"--dir={directory}"] * bool(directory) + ["--json"] * as_json


def replace_process(module: str, arguments: list[str], *, log_json: bool = False) -> NoReturn:
    """Replace this process by ``python -m module``. Stops with status 2 if the installation lacks the module."""
    try:
        is_here = find_spec(module) is not None
    except ModuleNotFoundError:
        is_here = False
    if not is_here:
        stop(f"this installation has no {module}: use one that has it, such as another image or a checkout", MISUSED)
    if log_json:
        os.environ["LOYALTY_LOG_FORMAT"] = "json"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell is wanted
