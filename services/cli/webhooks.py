"""`loyalty webhooks`: start the deliveries in this process's place; the CLI itself needs no HTTP client."""

from typing import Annotated

import typer

from services.cli.processes import become


def webhooks(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Read the endpoints and their secrets, say what they are, and end.")
    ] = False,
) -> None:
    """Deliver loyalty notifications to the endpoints of LOYALTY_WEBHOOKS_FILE."""
    become("services.webhooks", ["--check"] if check else [])
