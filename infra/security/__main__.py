"""``python -m infra.security`` creates the missing certificates and passwords of a secured Kafka."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infra.local.folders import ROOT
from infra.security.certificates import end_of
from infra.security.folder import SecurityFolder
from services.cli.output import MISUSED, clear_errors, stop


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the certificates and passwords.")] = ROOT
    / "var"
    / "security",
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address that the broker's certificate must have. Repeat the option for several names. The "
            "certificate keeps its existing names. The default of a new one is: kafka, localhost and 127.0.0.1."
        ),
    ] = None,
) -> None:
    """Create the authority, the certificate of the broker and the passwords of the services, if they are missing."""
    try:
        with clear_errors():
            created = SecurityFolder(folder).complete(host or ())
    except ValueError as error:
        stop(str(error), MISUSED)
    # Nothing warns before the certificate ends, and then no client can connect.
    broker = SecurityFolder(folder).broker
    until = f"{end_of(broker.read_bytes()):%Y-%m-%d}"
    for line in (*(f"created: {path}" for path in created), f"valid until {until}: {broker}"):
        Console(emoji=False, markup=False).print(line, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
