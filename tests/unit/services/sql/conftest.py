"""A database on the files and the ledger of a test."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from services.settings import Settings
from services.sql.database import Database
from tests.support.ledger import Ledger


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Database]]:
    """Opens a database on the files and the ledger of this test."""
    found: list[Database] = []

    def opened(**changes: Any) -> Database:
        settings = Settings(ledger_url=f"sqlite:///{tmp_path / 'ledger.sqlite'}", export_dir=str(tmp_path / "export"))
        found.append(Database(settings.model_copy(update=changes)))
        return found[-1]

    yield opened
    for database in found:
        database.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")) as ledger:
        yield ledger
