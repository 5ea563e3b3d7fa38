"""Commands that replace the process of the CLI with another program, such as `loyalty up`, `demo` or `pipeline`.

The CLI must not import the pipelines or the API. The new program keeps the process id, so it receives all signals, and
a supervisor sees its exit status.
"""

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn
from urllib.parse import unquote, urlsplit

import typer

from services.audit_trail import announce
from services.cli.output import MISUSED, AsJson, clear_errors, read_settings, stop

_STACK = ("cryptography", "fastapi", "psutil", "pyspark")
NEEDED = {
    "infra.local": ("stack", _STACK),
    "infra.demo": ("stack", _STACK),
    "infra.doctor": ("stack", ("psutil",)),
    "pipelines": ("pipeline", ("pyspark",)),
    "api": ("api", ("fastapi",)),
    "services.ledger": ("ledger", ("sqlalchemy",)),
    "services.webhooks": ("api", ("httpx",)),
}
"""By module or package: the extra that it needs, and packages of this extra. They show whether it is installed."""

FORWARD_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that forwards all options, also ``--help``, to its program."""

AsJsonLines = Annotated[bool, typer.Option("--json", help="Write the log as JSON lines (LOYALTY_LOG_FORMAT=json).")]
Folder = Annotated[
    str | None,
    typer.Option(
        "--dir", help="Folder of the data. Default: in a checkout the checkout, otherwise the user's data folder (XDG)."
    ),
]


def up(directory: Folder = None, *, as_json: AsJson = False) -> None:
    """Start Kafka, the pipeline, one API instance and the ledger on this machine.

    The command also starts a second driver of the pipeline (LOYALTY_PIPELINE_DRIVERS), and the webhooks if their file
    exists (LOYALTY_WEBHOOKS_FILE).
    """
    replace_process("infra.local", ["up", *_options(directory, as_json=as_json)])


def kafka(directory: Folder = None, *, as_json: AsJson = False) -> None:
    """Start Kafka alone on this machine, for `loyalty rebuild` or `loyalty export backfill`."""
    replace_process("infra.local", ["kafka", *_options(directory, as_json=as_json)])


def down(directory: Folder = None, *, as_json: AsJson = False) -> None:
    """Stop what `loyalty up` or `loyalty kafka` has started. The data stays."""
    replace_process("infra.local", ["down", *_options(directory, as_json=as_json)])


def demo(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Send a trading day through a separate stack, and check all results. `loyalty demo --help` shows its options."""
    replace_process("infra.demo", [*context.args, *_options(None, as_json=as_json)])


def pipeline(context: typer.Context, *, as_json: AsJsonLines = False) -> None:
    """Run the Spark pipeline. `loyalty pipeline --help` shows its options."""
    replace_process("pipelines", context.args, log_json=as_json)


def api(context: typer.Context, *, as_json: AsJsonLines = False) -> None:
    """Run one API instance. `loyalty api --help` shows its options."""
    replace_process("api", context.args, log_json=as_json)


def archive(context: typer.Context, *, as_json: AsJsonLines = False) -> None:
    """Append the new events of accounts to the Parquet archive, with pseudonyms instead of cards.

    A running pipeline does this by itself (LOYALTY_ARCHIVE_INTERVAL). So stop it first.
    """
    announce_command("archive")
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
    """Check whether this machine can run the system: Java, memory, ports, disk and clock.

    The output says how to solve each problem. The exit status is 1 if there is a problem.
    """
    replace_process("infra.doctor", _options(directory, as_json=as_json))


def announce_command(command: str, **details: str) -> None:
    """Record in the audit trail that a command begins, before another program replaces this process."""
    with clear_errors():
        announce(f"loyalty {command}", read_settings(), **details)


def _options(directory: str | None, *, as_json: bool) -> list[str]:
    return [f"--dir={directory}"] * bool(directory) + ["--json"] * as_json


def replace_process(module: str, arguments: list[str], *, log_json: bool = False) -> NoReturn:
    """Replace this process with ``python -m module``. Stops with status 2 if the installation lacks the module."""
    command = program(module, arguments, log_json=log_json)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted


def exit_status(command: list[str]) -> int:
    """Run a program to its end, and return its exit status. SIGTERM to this process also ends the program.

    If a signal ends this process or the program, the status is 128 plus the number of the signal.
    """
    signals: list[int] = []
    with subprocess.Popen(command) as child:

        def end(number: int, _: object) -> None:
            signals.append(number)
            child.terminate()

        before = signal.signal(signal.SIGTERM, end)
        try:
            status = child.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
    # If a signal has ended a program, Popen returns the negative number of the signal.
    number = signals[0] if signals else -status
    return 128 + number if number > 0 else status


def install_command(extra: str) -> str:
    """The command that installs this package with an extra, from the same source as before."""
    name = "retail-loyalty"
    try:
        origin = json.loads(distribution(name).read_text("direct_url.json") or "{}").get("url", "")
    except PackageNotFoundError:
        origin = ""
    # A package from a file remembers the file (https://packaging.python.org/en/latest/specifications/direct-url/).
    wheel = unquote(urlsplit(origin).path) if origin.endswith(".whl") else name
    by_pipx = (Path(sys.prefix) / "pipx_metadata.json").exists()
    installer = "pipx install --force" if by_pipx else f"{sys.executable} -m pip install"
    return f"{installer} '{wheel}[{extra}]'"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def program(module: str, arguments: list[str], *, log_json: bool) -> list[str]:
    """The command ``python -m module``.

    Stops with status 2 if the installation lacks the module, or a package that it needs.
    """
    if not _is_installed(module):
        stop(f"this installation has no {module}: use another image, or a checkout", MISUSED)
    extra, packages = NEEDED.get(module) or NEEDED.get(module.partition(".")[0], ("", ()))
    if missing := [package for package in packages if not _is_installed(package)]:
        stop(f"{', '.join(missing)} is not installed: run {install_command(extra)}", MISUSED)
    if log_json:
        os.environ["LOYALTY_LOG_FORMAT"] = "json"
    # By default `python -m` imports the packages and modules of the working directory first, for example a package
    # `services` of the user. The variable, unlike the option -P, also reaches the processes that the program starts,
    # such as Spark's Python workers.
    os.environ["PYTHONSAFEPATH"] = "1"
    return [sys.executable, "-m", module, *arguments]
