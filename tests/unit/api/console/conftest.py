"""The console of an instance with one customer, without and with credentials."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from schemas.topics import LOYALTY_BALANCES
from tests.support.clusters import Instance
from tests.support.secured import SecuredGroup
from tests.unit.api.console.console_customer import BALANCE, CARD


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
