"""The tables of the ledger as Arrow, and the pseudonymous keys of its accounts."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import Double, Select, Table, Text, select
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.types import TypeEngine

from services.errors import UserError
from services.ledger.database import AWAY
from services.ledger.positions import own_ledger
from services.ledger.queries import LedgerUnavailableError
from services.ledger.tables import ACCOUNT, ENTRY, GAP, UNDECODABLE
from services.pseudonyms import pseudonyms
from services.settings import Settings
from services.sql.arrow import BATCH_ROWS

TABLES = (ACCOUNT, ENTRY, GAP, UNDECODABLE)
_KEY_COLUMNS: dict[str, pa.DataType] = {"account_id": pa.int64(), "customer_key": pa.string()}
KEY_SCHEMA = pa.schema(_KEY_COLUMNS)


def ledger_schema(table: Table) -> pa.Schema:
    """The columns of a table of the ledger."""
    return pa.schema([pa.field(column.name, _arrow_type(column.type)) for column in table.columns])


def _arrow_type(sql: TypeEngine[Any]) -> pa.DataType:
    if isinstance(sql, Text):
        return pa.string()
    return pa.float64() if isinstance(sql, Double) else pa.int64()


def read_table(table: Table, settings: Settings) -> Iterator[pa.RecordBatch]:
    """All rows of a table of the ledger. Raises LedgerUnavailableError and LedgerError."""
    schema = ledger_schema(table)
    for page in _pages(select(table), settings):
        columns = zip(zip(*page, strict=True), schema.types, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(*column) for column in columns], schema=schema)


def read_customer_keys(settings: Settings) -> Iterator[pa.RecordBatch]:
    """The key of each account that is not erased: its ledger id and a keyed hash of its pseudonym and opened time.

    The hash uses its own secret, so nobody can join the rows with other data under pseudonyms. A customer who returns
    after an erasure has another opened time, and so another key.

    Raises UserError if no key is set, SettingsError for a wrong key, LedgerUnavailableError and LedgerError.
    """
    if settings.customer_key_file is None:
        raise UserError(
            "customer keys are off: set LOYALTY_CUSTOMER_KEY_FILE to a file for their key. A missing file is created"
        )
    keys = pseudonyms(settings.customer_key_file)
    columns = (ACCOUNT.c.id, ACCOUNT.c.pseudonym, ACCOUNT.c.opened_time)
    statement = select(*columns).where(ACCOUNT.c.erased_time.is_(None))
    for page in _pages(statement, settings):
        ids = pa.array([account for account, _, _ in page], pa.int64())
        hashed = pa.array([keys.of(f"{pseudonym}@{opened}") for _, pseudonym, opened in page])
        yield pa.RecordBatch.from_arrays([ids, hashed], schema=KEY_SCHEMA)


def _pages(statement: Select[Any], settings: Settings) -> Iterator[Sequence[Any]]:
    """The rows of a statement, BATCH_ROWS at once. Raises LedgerUnavailableError and LedgerError."""
    engine = own_ledger(settings, seconds=0)
    try:
        with engine.connect() as connection:
            yield from connection.execute(statement, execution_options={"yield_per": BATCH_ROWS}).partitions()
    # A ProgrammingError means that the tables do not exist yet. The ledger process creates them.
    except (*AWAY, ProgrammingError) as error:
        raise LedgerUnavailableError(str(error).partition("\n")[0]) from error
    finally:
        engine.dispose()
