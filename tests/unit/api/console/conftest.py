"""The console of an instance with one customer, without and with credentials."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from schemas.topics import LOYALTY_BALANCES, LOYALTY_DECISIONS
from services.codecs.records import mark_of
from tests.support.builders import available_points
from tests.support.clusters import Instance, with_marks
from tests.support.secured import SecuredGroup

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


@pytest.fixture
def instance() -> Instance:
    instance = Instance()
    instance.own_everything()
    instance.write(LOYALTY_BALANCES, CARD, BALANCE)
    return instance


@pytest.fixture
def client(instance: Instance) -> Iterator[TestClient]:
    with TestClient(instance.app) as client:
        yield client


@pytest.fixture
def secured(tmp_path: Path) -> SecuredGroup:
    return SecuredGroup(tmp_path)


@pytest.fixture
def guarded(secured: SecuredGroup) -> Iterator[TestClient]:
    """An API that needs credentials."""
    instance = Instance("http://one:8080", secured.security("http://one:8080"))
    instance.own_everything()
    instance.write(LOYALTY_BALANCES, CARD, BALANCE)
    with TestClient(instance.app) as client:
        yield client
