"""A database on the files and the ledger of a test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.settings import Settings
from services.sql.database import Database


@pytest.fixture
def opened(database_url: str, tmp_path: Path) -> Iterator[Callable[..., Database]]:
    """Opens a database on the files and the ledger of this test."""
    found: list[Database] = []

    def opened(**changes: Any) -> Database:
        settings = Settings(ledger_url=database_url, export_dir=str(tmp_path / "export"))
        found.append(Database(settings.model_copy(update=changes)))
        return found[-1]

    yield opened
    for database in found:
        database.close()


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """The ledger of ``opened``."""
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
