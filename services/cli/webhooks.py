"""`loyalty webhooks`. The program of the webhooks replaces this process."""

from typing import Annotated

import typer

from services.cli.processes import replace_process


def webhooks(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Read the endpoints and their secrets, print the endpoints, and end.")
    ] = False,
) -> None:
    """Deliver loyalty notifications to the endpoints of LOYALTY_WEBHOOKS_FILE."""
    replace_process("services.webhooks", ["--check"] if check else [])
