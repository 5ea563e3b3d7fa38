"""The tables of the catalogue: their columns, the rows of line items and invoices, and the entries."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from services.domain.entries import Kind
from services.errors import UserError
from services.sql.catalogue import TABLES
from services.sql.database import Database
from tests.support.builders import CARD, entry
from tests.support.ledger import Ledger
from tests.unit.services.sql.rows import MARCH, export, line, rows


def test_the_catalogue_describes_the_tables(opened: Callable[..., Database]) -> None:
    """Every table has exactly the columns of the catalogue, in their order and with their types."""
    columns = opened().columns()
    for table in TABLES:
        assert [(column.name, column.type) for column in table.columns] == columns[table.name], table.name
        assert all(column.meaning.endswith(".") for column in table.columns), table.name


def test_line_items_are_the_rows_of_all_files(database: Database, tmp_path: Path) -> None:
    """Old files without LineKind have null there. The checkpoint and unfinished files are not rows."""
    export(tmp_path / "export", line("1", "A", 10.5), line("1", "B", 2))
    export(tmp_path / "export", line("2", "A", 7), batch=1, without="LineKind")
    for hidden in ("_checkpoint", ".spark-staging-1"):
        (tmp_path / "export" / hidden).mkdir()
        (tmp_path / "export" / hidden / "part-9.parquet").write_bytes(b"no Parquet")

    found = rows(database, "SELECT InvoiceNumber, ItemCode, TotalValue, LineKind, date FROM line_items ORDER BY 1, 2")

    day = date(2026, 9, 21)
    assert [("1", "A", 10.5, "sale", day), ("1", "B", 2.0, "sale", day), ("2", "A", 7.0, None, day)] == found


def test_parquet_files_of_other_programs_are_no_line_items(database: Database, tmp_path: Path) -> None:
    """The folder can be read again after an older release has written tables into it."""
    export(tmp_path / "export", line("1", "A", 10.5))
    table = tmp_path / "export" / "tables" / "invoices"
    table.mkdir(parents=True)
    parquet.write_table(pa.table({"InvoiceNumber": ["1"], "StoreID": ["S1"]}), table / "part-0.parquet")
    assert [("1", 10.5)] == rows(database, "SELECT InvoiceNumber, TotalValue FROM line_items")


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_folder_can_be_a_uri(opened: Callable[..., Database], tmp_path: Path, scheme: str) -> None:
    """RFC 8089 and Hadoop allow both forms."""
    export(tmp_path / "a folder", line("1", "A", 10.5))
    uri = f"{scheme}{tmp_path}/a%20folder"
    assert [("1",)] == rows(opened(export_dir=uri), "SELECT InvoiceNumber FROM line_items")


def test_an_open_database_reads_line_items_that_arrive(database: Database, tmp_path: Path) -> None:
    """Each statement reads the files that exist at its start, also through views and if there were none before."""
    with pytest.raises(UserError, match="has no exported files"):
        database.run("FROM invoices")
    for number in (1, 2):
        export(tmp_path / "export", line(str(number), "A", 10.5), batch=number)
        assert [(number, number)] == rows(database, "SELECT count(*), count(DISTINCT InvoiceNumber) FROM invoices")


def test_invoices_add_up_their_lines(database: Database, tmp_path: Path) -> None:
    """Money is exact. A return may have any sign. A discount makes a sale smaller, and a return too."""
    lines = [line("1", "A", 0.1), line("1", "B", 0.2), line("1", "C", -0.05), line("2", "A", -5.0, LineKind="return")]
    lines += [line("2", "B", 1.0, LineKind="return"), line("3", "A", float("nan"))]
    export(tmp_path / "export", *lines, line("4", "A", 6.0, LineKind="return"))

    found = rows(database, "SELECT InvoiceNumber, Lines, Sold, Returned, Net FROM invoices ORDER BY 1")

    amounts = ("0.25", "0", "0.25"), ("0", "4", "-4"), ("0", "0", "0"), ("0", "6", "-6")
    money = [[Decimal(amount) for amount in each] for each in amounts]
    assert [("1", 3, *money[0]), ("2", 2, *money[1]), ("3", 1, *money[2]), ("4", 1, *money[3])] == found


@pytest.mark.parametrize(
    ("returned", "sold", "amounts"),
    [
        ((-5.0, 999.0), (), ("0", "-994", "994")),
        ((10.0,), (150.0,), ("150", "-10", "160")),
        ((-90.0, 10.0), (150.0,), ("150", "80", "70")),
        ((90.0,), (), ("0", "90", "-90")),
        ((10.0, None), (), ("0", "10", "-10")),
    ],
    ids=["larger discount", "exchange with a discount", "exchange", "positive return", "a line without a value"],
)
def test_customers_pay_for_a_discount_that_is_larger_than_the_goods(
    database: Database, tmp_path: Path, returned, sold, amounts
) -> None:
    """The shop receives this money, as in store-sales."""
    lines = [line("1", "A", value, LineKind="return") for value in returned]
    export(tmp_path / "export", *lines, *(line("1", "B", value) for value in sold))
    assert [tuple(map(Decimal, amounts))] == rows(database, "SELECT Sold, Returned, Net FROM invoices")


def test_the_sum_of_an_invoice_is_rounded_once(database: Database, tmp_path: Path) -> None:
    """A line can have more than two digits. The sum is rounded half up, as everywhere."""
    lines = [line("1", "A", 0.125)] * 8 + [line("2", "A", 0.004)] * 100 + [line("3", "A", 8.405)]
    export(tmp_path / "export", *lines, line("4", "A", -8.405, LineKind="return"))
    amounts = [(Decimal("1.00"),), (Decimal("0.40"),), (Decimal("8.41"),), (Decimal("-8.41"),)]
    assert amounts == rows(database, "SELECT Net FROM invoices ORDER BY InvoiceNumber")


def test_invoices_with_the_same_number_are_two_rows(database: Database, tmp_path: Path) -> None:
    """A till that begins its numbers again uses a number of last year."""
    export(tmp_path / "export", line("1", "A", 1.0), line("1", "B", 2.0), line("1", "A", 5.0, CreatedTime=MARCH))
    found = rows(database, "SELECT InvoiceNumber, Lines, Sold FROM invoices ORDER BY CreatedTime")
    assert [("1", 2, Decimal(3)), ("1", 1, Decimal(5))] == found


@pytest.mark.parametrize("created", [2**63 - 1, -(2**63), None])
def test_a_wrong_clock_stops_no_statement(database: Database, tmp_path: Path, created: int) -> None:
    """A time that the calendar does not have is null."""
    export(tmp_path / "export", line("1", "A", 1.0, CreatedTime=created, DateSource="broker"))
    assert [(None,)] == rows(database, "SELECT CreatedTime FROM invoices")


def test_entries_show_no_customer(database: Database, ledger: Ledger) -> None:
    """The tables that the ledger feeds contain no card and no text that a person wrote."""
    ledger.append(
        (CARD, entry(1)), (CARD, entry(2, reason="calls himself Ravi", actor=CARD, counterparty="other-card"))
    )
    for table in ("loyalty_entries", "balances_by_day", "liability", "liability_by_month"):
        shown = str(rows(database, f"FROM {table}"))
        assert "2" in shown
        assert not {word for word in (CARD, "Ravi", "other-card") if word in shown}


def test_entries_of_an_erased_account_have_no_invoices(database: Database, ledger: Ledger) -> None:
    """With an invoice number, analysts could find the basket in the line items. Amounts stay."""
    ledger.append((CARD, entry(1)), ("other", entry(1, invoice_number="INV7")))
    statement = "SELECT Account, InvoiceNumber, Amount FROM loyalty_entries WHERE Sequence = 1 ORDER BY Account"
    assert [(1, "INV1", 50.5), (2, "INV7", 50.5)] == rows(database, statement)
    ledger.append((CARD, entry(2, -100, kind=Kind.ERASED, total=0)))
    assert [(1, "", 50.5), (2, "INV7", 50.5)] == rows(database, statement)
