"""A database on the files and the ledger of a test."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.settings import Settings
from services.sql.database import Database


@pytest.fixture
def opened(database_url: str, tmp_path: Path) -> Iterator[Callable[..., Database]]:
    """Opens a new database on the files and the ledger of this test."""
    found: list[Database] = []

    def opened(**changes: Any) -> Database:
        settings = Settings(ledger_url=database_url, export_dir=str(tmp_path / "export"))
        found.append(Database(settings.model_copy(update=changes)))
        return found[-1]

    yield opened
    for database in found:
        database.close()


@contextmanager
def _on_any_folder(link: Path, **changes: Any) -> Iterator[Callable[[Path], Database]]:
    """One database, on the files and the ledger of the folder of each call."""
    settings = Settings(ledger_url=f"sqlite:///{link}/ledger.sqlite", export_dir=f"{link}/export", **changes)
    with closing(Database(settings)) as database:

        def database_on(folder: Path) -> Database:
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
            return database

        yield database_on


@pytest.fixture(scope="module")
def database_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Database]]:
    """The one database of a module, on the files and the ledger of a folder. To open a new one takes 0.1 s.

    It stores nothing: each statement reads the files and the ledger again. A test that changes the database itself, or
    depends on its start, uses ``opened``.
    """
    with _on_any_folder(tmp_path_factory.mktemp("sql") / "link") as database_on:
        yield database_on


@pytest.fixture(scope="module")
def keyed_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Database]]:
    """Like ``database_on``, with the secret key that makes the keys of customers."""
    link = tmp_path_factory.mktemp("sql") / "link"
    with _on_any_folder(link, customer_key_file=link / "customer.key") as database_on:
        yield database_on


@pytest.fixture
def database(database_on: Callable[[Path], Database], tmp_path: Path) -> Database:
    """The database of the module, on the files and the ledger of this test."""
    return database_on(tmp_path)


@pytest.fixture
def keyed(keyed_on: Callable[[Path], Database], tmp_path: Path) -> Database:
    """The database of the module with the key, on the files and the ledger of this test."""
    return keyed_on(tmp_path)


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """The ledger of ``opened``."""
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
