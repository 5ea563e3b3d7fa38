"""``python -m infra.supply_chain`` lists the components of the project, and checks them for known advisories."""

import tomllib
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from infra import setup
from infra.local import jars
from infra.local.folders import ROOT
from infra.supply_chain import components, images
from infra.supply_chain.advisories import Advisories, ExportError, Finding, read_exports
from infra.supply_chain.components import MAVEN, NPM, PYPI, Component

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

ACCEPTED = ROOT / "infra" / "accepted-advisories.yaml"
LOCKS = ("all", "api", "build", "pipeline", "peers")

_AFFECTED, _UNREADABLE = 1, 2


class Ecosystem(StrEnum):
    PYPI = PYPI
    MAVEN = MAVEN
    NPM = NPM


@app.command()
def audit(
    exports: Annotated[
        list[Path], typer.Argument(help="OSV exports: all.zip, a folder of JSON files, or a JSON file.")
    ],
    *,
    ecosystem: Annotated[list[Ecosystem] | None, typer.Option(help="Check only this ecosystem. Default: all.")] = None,
) -> None:
    """Compare all locked packages, jars and scripts for browsers with OSV exports. The command uses no network.

    The exit status is 1 if an advisory applies that infra/accepted-advisories.yaml does not accept, 2 if the check is
    not possible, and otherwise 0.
    """
    chosen = [*map(str, ecosystem or Ecosystem)]
    try:
        checked = [each for each in locked() if each.ecosystem in chosen]
        advisories = Advisories(read_exports(exports), checked)
        accepted = accepted_ids(ACCEPTED, datetime.now(UTC).date())
    except (ExportError, jars.JarsError, setup.SetupError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_UNREADABLE) from error
    findings = [each for component in checked for each in advisories.about(component)]
    refused = [each for each in findings if not accepted & {*each.ids}]
    console = Console(width=200, emoji=False)
    if refused:
        console.print(_table(refused))
    count = (
        f"{len(checked)} components checked; {len(refused)} advisories apply, {len(findings) - len(refused)} accepted"
    )
    console.print(count, highlight=False)
    if refused:
        raise typer.Exit(_AFFECTED)


@app.command()
def sbom(to: Annotated[Path, typer.Option(help="Folder of the files.")] = ROOT / "var" / "sbom") -> None:
    """Write the SBOM of each image as CycloneDX 1.6 (JSON)."""
    to.mkdir(parents=True, exist_ok=True)
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for image in sorted(images.images()):
        file = to / f"{image}.cdx.json"
        file.write_text(images.sbom(image, project["version"]), encoding="utf-8")
        typer.echo(f"written: {file}")


def locked() -> list[Component]:
    """All components of the lock files, the jars in the package pyspark, and the scripts, without duplicates."""
    found = {each for lock in LOCKS for each in components.packages(lock)}
    found |= {each for name in jars.STACK.configurations for each in components.locked_jars(name)}
    found |= {*components.scripts(components.CONSOLE_SCRIPTS + components.DOCUMENTATION_SCRIPTS)}
    return sorted(found | {*components.spark_jars()})


def accepted_ids(file: Path, today: date) -> set[str]:
    """The ids of the advisories that the file accepts today.

    The file maps each id to a reason and the last day on which the advisory is accepted. Raises ExportError.
    """
    entries = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    for name, entry in entries.items():
        if not (isinstance(entry, dict) and entry.get("reason") and isinstance(entry.get("until"), date)):
            raise ExportError(
                f"{file}: {name} needs a reason and a day: write {name}: {{reason: …, until: 2027-01-31}}"
            )
    return {name for name, entry in entries.items() if today <= entry["until"]}


def _table(findings: list[Finding]) -> Table:
    table = Table("component", "version", "advisory", "fixed in", "problem")
    for each in findings:
        ids, fixed = ", ".join(each.ids), ", ".join(each.fixed) or "no version"
        table.add_row(each.component.name, each.component.version, ids, fixed, each.summary)
    return table


if __name__ == "__main__":
    app()
