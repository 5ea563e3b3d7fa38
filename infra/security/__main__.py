"""``python -m infra.security``: certificates and passwords of a secured Kafka; run again, it makes what is missing."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infra.local import jars
from infra.security.folder import LOCAL_HOSTS, SecurityFolder


def main(
    folder: Annotated[Path, typer.Argument(help="Where they are kept.")] = jars.ROOT / "var" / "security",
    *,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the broker; can be repeated. Unset: this machine's.")
    ] = None,
) -> None:
    """Make an authority, the broker's certificate and a password for every service, each unless it is there."""
    made = SecurityFolder(folder).complete(host or LOCAL_HOSTS)
    for path in made:
        Console().print(f"made: {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
