"""`loyalty programme`: check a programme file, publish it as the next version, and show all versions."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table

from services.audit_trail import audited
from services.cli.output import (
    MISUSED,
    AsJson,
    clear_errors,
    console,
    print_json,
    read_settings,
    report,
    stdout,
    stop,
    table,
)
from services.domain.formats import short_time_text, to_milliseconds
from services.programmes.file import ProgrammeError, parse_programme
from services.programmes.topic import Version, default_programme, publish_programme, published_versions
from services.settings import Settings

app = typer.Typer(no_args_is_help=True, help="The rules of the loyalty programme.")

File = Annotated[Path, typer.Argument(help="A programme file (docs/reference/programme.md).")]


@app.command("check")
def check(file: File, *, as_json: AsJson = False) -> None:
    """Check a programme file. The exit status is 2 if it has problems."""
    text = _text_of(file)
    try:
        parse_programme(text)
    except ProgrammeError as error:
        if as_json:
            print_json({"valid": False, "problems": [asdict(each) for each in error.problems]})
            raise typer.Exit(MISUSED) from error
        _stop_with_problems(file, error)
    report({"valid": True, "problems": []}, f"{file}: valid", as_json=as_json)


@app.command("publish")
def publish(
    file: File,
    *,
    effective_from: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Start of the version, in ISO 8601 with an offset or Z. Default: after LOYALTY_PROGRAMME_NOTICE.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Publish a programme file as the next version. The version applies to all events from its start on."""
    text = _text_of(file)
    effective_time = None if effective_from is None else _milliseconds(effective_from)
    settings = read_settings()
    with clear_errors():
        try:
            parse_programme(text)  # before the audit record: a file with problems changes nothing
            with audited("loyalty programme publish", settings) as details:
                version = publish_programme(text, settings, effective_time)
                details["version"] = f"{version.number}"
        except ProgrammeError as error:
            if error.problems:
                _stop_with_problems(file, error)
            raise
    text = f"version {version.number} takes effect at {short_time_text(version.effective_time)}"
    report(_json(version), text, as_json=as_json)


@app.command("show")
def show(
    *,
    version: Annotated[int | None, typer.Option(min=0, help="Print the file of this version.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show all versions, or the file of one version."""
    settings = read_settings()
    with clear_errors():
        known = [_version_0(settings), *published_versions(settings)]
    if version is not None:
        _show_one(known, version, as_json=as_json)
    else:
        report({"versions": [_json(each) for each in known]}, _table(known), as_json=as_json)


def _version_0(settings: Settings) -> Version:
    text = f"loyalty-factor: {settings.loyalty_factor}\n"
    return Version(0, 0, 0, text, default_programme(settings))


def _show_one(known: list[Version], number: int, *, as_json: bool) -> None:
    if number >= len(known):
        stop(f"there is no version {number}: the latest version is {len(known) - 1}")
    if as_json:
        print_json(_json(known[number]))
    else:
        with stdout() as file:
            file.write(known[number].text.removesuffix("\n") + "\n")


def _table(known: list[Version]) -> Table:
    now = datetime.now(UTC).timestamp() * 1000
    in_force = max(each.number for each in known if each.effective_time <= now)
    last_of_its_time = {each.effective_time: each.number for each in known}

    def state(version: Version) -> str | None:
        if version.number != last_of_its_time[version.effective_time]:
            return "replaced"
        if version.number == in_force:
            return "in force"
        return "planned" if version.number > in_force else None

    rows = (
        (
            each.number,
            short_time_text(each.effective_time) if each.number else None,
            short_time_text(each.published_time) if each.number else "from the settings",
            state(each),
        )
        for each in known
    )
    return table("version", "takes effect", "published", "", rows=rows)


def _text_of(file: Path) -> str:
    with clear_errors():
        content = file.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        stop(f"{file}: line {line} is not UTF-8: save the file in UTF-8", MISUSED)


def _stop_with_problems(file: Path, error: ProgrammeError) -> NoReturn:
    """Print one line for each problem, so that the user can correct all of them at once."""
    for problem in error.problems:
        console(stderr=True).print(f"{file}: {problem}", highlight=False, soft_wrap=True)
    number = len(error.problems)
    them = "1 problem: correct it" if number == 1 else f"{number} problems: correct them"
    stop(f"{file} has {them} and try again", MISUSED)


def _milliseconds(time: str) -> int:
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        stop(f"--effective-from {time!r} is not a time: use ISO 8601, such as 2026-12-01T00:00:00+05:30", MISUSED)
    if found.tzinfo is None:
        stop(f"--effective-from {time} has no offset: add Z for UTC, or an offset such as +05:30", MISUSED)
    return to_milliseconds(found)


def _json(version: Version) -> dict[str, Any]:
    return {
        "version": version.number,
        "effective_time": short_time_text(version.effective_time),
        "published_time": short_time_text(version.published_time) if version.number else None,
        "programme": version.text,
    }
