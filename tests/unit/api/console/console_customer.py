"""A customer in the console, the pages, and decisions about commands."""

from decimal import Decimal
from typing import Any

from schemas.topics import LOYALTY_DECISIONS
from services.codecs.records import mark_of
from tests.support.builders import available_points
from tests.support.clusters import Instance, with_marks

CARD = "9265846829"
HTMX = {"HX-Request": "true"}
BALANCE = {
    "CustomerCardNo": CARD,
    **available_points("417.04"),
    "Sequence": 3,
    "OpenedTime": 1_767_373_451_000,
    "UpdatedTime": 1_767_373_451_000,
}
PAGES = ["", "helpdesk", f"helpdesk?card={CARD}", "operations", "sign-in"]


def decide(instance: Instance, sequence: int = 3, **changes: Any) -> None:
    """Let each command be decided at once."""

    def answer(command: dict[str, Any]) -> None:
        decision = {
            **mark_of(command["CommandID"], "adjust", command["RequestHash"]),
            "Sequence": 2,
            "Status": "done",
            "CustomerCardNo": CARD,
            "Points": Decimal("5.00"),
            "OpenedTime": BALANCE["OpenedTime"],
            "AccountSequence": sequence,
            **changes,
        }
        instance.write(LOYALTY_DECISIONS, command["CommandID"], decision)

    with_marks(instance)
    instance.command_log.on_send = answer
