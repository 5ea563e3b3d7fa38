"""``python -m infra.security`` creates the missing certificates and passwords of a secured Kafka."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infra.local import jars
from infra.security.folder import LOCAL_HOSTS, SecurityFolder


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the certificates and passwords.")] = jars.ROOT
    / "var"
    / "security",
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the broker. Repeat it for several. Default: those of this machine."),
    ] = None,
) -> None:
    """Create the authority, the certificate of the broker and a password for each service, if they are missing."""
    created = SecurityFolder(folder).complete(host or LOCAL_HOSTS)
    for path in created:
        Console(emoji=False, markup=False).print(f"created: {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
