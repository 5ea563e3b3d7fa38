"""A ledger in SQLite and in PostgreSQL."""

from collections.abc import Iterator

import pytest

from tests.support.ledger import Ledger


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    ledger = Ledger(database_url)
    yield ledger
    ledger.close()
