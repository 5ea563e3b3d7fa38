"""The tables of the catalogue: their columns, their rows, and their sums."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyarrow import parquet

from services.domain.entries import Entry, Kind
from services.errors import UserError
from services.ledger.database import LedgerError
from services.ledger.queries import LedgerUnavailableError
from services.settings import Settings
from services.sql import database as database_module
from services.sql.catalogue import TABLES
from services.sql.database import Database, SqlError
from services.sql.questions import BY_NAME, QUESTIONS
from tests.support.account_histories import HISTORIES, Processed
from tests.support.builders import CARD, entry
from tests.support.examples import examples
from tests.support.ledger import Ledger
from tests.unit.services.sql.rows import MARCH, at, export, line, rows

_LAST_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
MAY = int(datetime(2027, 6, 1, tzinfo=UTC).timestamp() * 1000)
"""The end of the last day of May: the first millisecond of June."""
YEARS = 3 * 365 * 86_400_000


def test_the_catalogue_describes_the_tables(opened: Callable[..., Database]) -> None:
    """Every table has exactly the columns of the catalogue, in their order and with their types."""
    columns = opened().columns()
    for table in TABLES:
        assert [(column.name, column.type) for column in table.columns] == columns[table.name], table.name
        assert all(column.meaning.endswith(".") for column in table.columns), table.name


@pytest.fixture
def machine_in_kiritimati() -> Iterator[None]:
    """The zone of this process is 14 hours before UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("machine_in_kiritimati")
def test_statements_are_in_utc_on_every_machine(opened: Callable[..., Database]) -> None:
    """`now()` and the times of the tables are comparable. A time with a zone becomes a text and a day in UTC."""
    database = opened()
    ((now, today),) = rows(database, "SELECT now()::TIMESTAMP, current_date")
    assert timedelta(minutes=5) > abs(datetime.now(UTC).replace(tzinfo=None) - now)
    assert now.date() == today
    statement = "SELECT strftime(t, '%m-%d %H'), t::DATE FROM (SELECT TIMESTAMPTZ '2026-11-30 20:00+00' AS t)"
    assert [("11-30 20", date(2026, 11, 30))] == rows(database, statement)


@pytest.mark.usefixtures("ledger")
def test_ctrl_c_stops_a_statement(tmp_path: Path) -> None:
    """DuckDB stops its work, and the database answers the next statement."""
    settings = Settings(ledger_url=f"sqlite:///{tmp_path / 'ledger.sqlite'}", export_dir=str(tmp_path / "export"))
    with closing(Database(settings, lambda _: os.kill(os.getpid(), signal.SIGINT))) as database:
        with pytest.raises(KeyboardInterrupt):
            database.run("SELECT sum(sqrt(range)) FROM range(1_000_000_000_000), (SELECT count(*) FROM ledger_entry)")
        assert [(1,)] == rows(database, "SELECT 1")


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


def lots_of(*entries: tuple[str, int, int, int]) -> list[Entry]:
    """Entries of one account: kind, points, total and time of expiry."""
    found = []
    for sequence, (kind, points, total, expires) in enumerate(entries, start=1):
        made = entry(sequence, points, kind=Kind(kind), total=total, available=total, expires_time=expires, tier="gold")
        found.append(made)
    return found


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([("earned", 500, 500, MARCH), ("earned", 700, 1200, MAY)], {"2027-03": "5.00", "2027-05": "7.00"}),
        # Customers spend the points that expire soonest.
        ([("earned", 500, 500, MARCH), ("earned", 700, 1200, MAY), ("redeemed", -600, 600, 0)], {"2027-05": "6.00"}),
        (
            [("earned", 500, 500, MARCH), ("adjusted", 100, 600, 0), ("redeemed", -450, 150, 0)],
            {"2027-03": "0.50", "never": "1.00"},
        ),
        ([("earned", 500, 500, MARCH), ("expired", -500, 0, 0), ("earned", 1, 1, MAY)], {"2027-05": "0.01"}),
        ([("earned", 500, 500, MARCH), ("returned", -800, -300, 0)], {"debt": "-3.00"}),
        ([("earned", 100, 900, MARCH)], {"2027-03": "1.00", "unknown": "8.00"}),
        ([("earned", 500, 500, MARCH), ("reserved", 0, 500, MAY)], {"2027-03": "5.00"}),
        ([("earned", 500, 500, MARCH), ("erased", -500, 0, 0)], {}),
        ([("imported", 500, 500, MARCH)], {"2027-03": "5.00"}),
    ],
)
def test_liability_by_month(database: Database, ledger: Ledger, entries: list[Any], expected: dict[str, str]) -> None:
    """The remaining points are those that expire last. Their sum is the balance."""
    ledger.append(*((CARD, each) for each in lots_of(*entries)))
    found = rows(database, "SELECT Expiry, Tier, Points FROM liability ORDER BY Expiry")
    assert [(month, "gold", Decimal(points)) for month, points in sorted(expected.items())] == found


def test_the_liability_of_each_month_end_is_exact(database: Database, ledger: Ledger) -> None:
    """Each month has what was owed at its end, by the tiers and lots of that time, also if nothing changed in it."""
    first = [
        entry(1, 500, time=at(2024, 1, 31, 23), total=500, expires_time=MARCH),
        entry(2, 700, time=at(2024, 2, 1, 0), total=1200, expires_time=MAY),
        entry(3, -600, time=at(2024, 4, 2), kind=Kind.REDEEMED, total=600),
        entry(4, 0, time=at(2024, 4, 3), kind=Kind.TIER, total=600, tier="gold"),
    ]
    second = [
        entry(1, 50, time=at(2024, 2, 29, 23), total=50, expires_time=MARCH),
        entry(2, 1, time=at(2024, 2, 28), total=51),  # late: it is of the day of the change before it
        entry(3, -51, time=at(2024, 3, 31), kind=Kind.ERASED, total=0),
    ]
    ledger.append(*((CARD, each) for each in first), *(("other", each) for each in second))

    found = rows(database, "FROM liability_by_month WHERE MonthEnd < '2024-06-30' ORDER BY ALL")

    january, february, march, april, may = (date(2024, month, day) for month, day in enumerate((31, 29, 31, 30, 31), 1))
    expected = [
        (january, "2027-03", "", 1, "5.00"),
        *[
            (february, "2027-03", "", 2, "5.50"),
            (february, "2027-05", "", 1, "7.00"),
            (february, "never", "", 1, "0.01"),
        ],
        *[(march, "2027-03", "", 1, "5.00"), (march, "2027-05", "", 1, "7.00")],
        *((end, "2027-05", "gold", 1, "6.00") for end in (april, may)),
    ]
    assert [(*each, Decimal(points)) for *each, points in expected] == found


def test_points_of_a_replaced_card_keep_their_months(database: Database, ledger: Ledger) -> None:
    """The lots of the old card count for the new one from the move on, also over two moves and back."""
    moved = {"expires_time": 0, "tier": "gold"}
    out, into = {"kind": Kind.MOVED_OUT, **moved}, {"kind": Kind.MOVED_IN, **moved}
    ledger.append(
        ("A", entry(1, 500, total=500, time=at(2024, 1, 2), expires_time=MARCH)),
        ("C", entry(1, 300, total=300, time=at(2024, 1, 3), expires_time=at(2027, 1, 5))),
        ("A", entry(2, -500, total=0, time=at(2024, 2, 2), counterparty="B", **out)),
        ("B", entry(1, 500, total=500, time=at(2024, 2, 2), counterparty="A", **into)),
        ("B", entry(2, -500, total=0, time=at(2024, 3, 2), counterparty="C", **out)),
        ("C", entry(2, 500, total=800, time=at(2024, 3, 2), counterparty="B", **into)),
        ("C", entry(3, -800, total=0, time=at(2024, 4, 2), counterparty="B", **out)),
        ("B", entry(3, 800, total=800, time=at(2024, 4, 2), counterparty="C", **into)),
    )
    months = rows(database, "SELECT MonthEnd, Expiry, Points FROM liability_by_month WHERE year(MonthEnd) = 2024")
    both = [("2027-01", Decimal("3.00")), ("2027-03", Decimal("5.00"))]
    assert {(end, *each) for end, *each in months} == {
        (date(2024, month, day), *each) for month, day in enumerate(_LAST_DAYS, 1) for each in both
    }
    assert both == rows(database, "SELECT Expiry, Points FROM liability ORDER BY Expiry")
    assert [("gold", 1, Decimal("8.00"))] == rows(database, BY_NAME["members-by-tier"].sql), "old cards are no members"


def test_spent_points_of_a_replaced_card_are_not_owed(database: Database, ledger: Ledger) -> None:
    """The spent points expire later than the points that remain. They must not explain the remaining points."""
    ledger.append(
        ("A", entry(1, 500, total=500, time=at(2024, 1, 2), expires_time=MAY)),
        ("B", entry(1, 300, total=300, time=at(2024, 1, 3), expires_time=MARCH)),
        ("A", entry(2, -400, total=100, time=at(2024, 1, 4), kind=Kind.REDEEMED)),
        ("A", entry(3, -100, total=0, time=at(2024, 2, 2), kind=Kind.MOVED_OUT, counterparty="B")),
        ("B", entry(2, 100, total=400, time=at(2024, 2, 2), kind=Kind.MOVED_IN, counterparty="A")),
    )
    expected = [("2027-03", Decimal("3.00")), ("2027-05", Decimal("1.00"))]
    assert expected == rows(database, "SELECT Expiry, Points FROM liability ORDER BY Expiry")


def test_points_that_were_spent_between_two_moves_are_not_owed(database: Database, ledger: Ledger) -> None:
    """Past months stay the same after an erasure of all cards."""
    ledger.append(
        ("A", entry(1, 500, total=500, time=at(2024, 1, 2), expires_time=MAY)),
        ("C", entry(1, 300, total=300, time=at(2024, 1, 3), expires_time=MARCH)),
        ("A", entry(2, -500, total=0, time=at(2024, 2, 2), kind=Kind.MOVED_OUT, counterparty="B")),
        ("B", entry(1, 500, total=500, time=at(2024, 2, 2), kind=Kind.MOVED_IN, counterparty="A")),
        ("B", entry(2, -400, total=100, time=at(2024, 2, 3), kind=Kind.REDEEMED)),
        ("B", entry(3, -100, total=0, time=at(2024, 2, 4), kind=Kind.MOVED_OUT, counterparty="C")),
        ("C", entry(2, 100, total=400, time=at(2024, 2, 4), kind=Kind.MOVED_IN, counterparty="B")),
    )
    february = "SELECT Expiry, Points FROM liability_by_month WHERE MonthEnd = '2024-02-29' ORDER BY Expiry"
    expected = [("2027-03", Decimal("3.00")), ("2027-05", Decimal("1.00"))]
    assert expected == rows(database, february)
    erased = {"kind": Kind.ERASED, "total": 0, "time": at(2024, 3, 2)}
    ledger.append(
        *((card, entry(n, points, **erased)) for card, n, points in (("C", 3, -400), ("B", 4, 0), ("A", 3, 0)))
    )
    assert expected == rows(database, february)


def test_expired_points_are_not_owed(database: Database, ledger: Ledger) -> None:
    """The ledger began later than the account, so it does not know when the other points expire."""
    ledger.append(
        (CARD, entry(1, 500, total=900, time=at(2024, 1, 2), expires_time=at(2024, 3, 20, 0))),
        (CARD, entry(2, -500, total=400, time=at(2024, 3, 20, 0), kind=Kind.EXPIRED)),
    )
    months = rows(database, "SELECT Expiry, Points FROM liability_by_month WHERE MonthEnd <= '2024-03-31' ORDER BY ALL")
    both = [("2024-03", Decimal("5.00")), ("unknown", Decimal("4.00"))]
    assert sorted([*both, *both, both[1]]) == months


# Each example has a ledger, so shrinking would take minutes.
@hypothesis_settings(max_examples=examples(15), phases=[Phase.generate])
@given(st.lists(HISTORIES, max_size=4))
def test_liability_is_the_sum_of_all_balances(
    database_on: Callable[[Path], Database], histories: list[Processed]
) -> None:
    """For any history, both are equal to the hundredth, for each tier, now and at each end of a month."""
    with TemporaryDirectory() as folder, closing(Ledger(f"sqlite:///{folder}/ledger.sqlite")) as ledger:
        for number, history in enumerate(histories):
            # All months of these entries have ended.
            ledger.append(*((f"CARD{number}", replace(each, time=each.time - YEARS)) for each in history.entries))
        accounts = [history.account for history in histories if history.account]
        expected: dict[str, int] = {}
        for account in accounts:
            expected[account.tier] = expected.get(account.tier, 0) + account.total
        database = database_on(Path(folder))
        found = rows(database, "SELECT Tier, sum(Points) FROM liability GROUP BY Tier")
        days = rows(
            database,
            "SELECT sum(Total) FROM (SELECT arg_max(Total, Day) AS Total FROM balances_by_day GROUP BY Account)",
        )
        wrong = rows(database, _WRONG_MONTHS)
        now = rows(database, "FROM liability ORDER BY ALL")
        last = rows(database, f"SELECT * EXCLUDE (MonthEnd) {_LAST_MONTH} ORDER BY ALL")
    assert {tier: Decimal(points) / 100 for tier, points in expected.items() if points} == {
        tier: points for tier, points in found if points
    }
    assert Decimal(sum(expected.values())) / 100 == (days[0][0] or 0)
    assert [] == wrong
    assert now == last


_LAST_MONTH = """
    FROM liability_by_month
    WHERE MonthEnd = date_trunc('month', time_of(epoch_ms(now()))) - INTERVAL 1 DAY
"""
_WRONG_MONTHS = """
    WITH ends AS (
        SELECT unnest(generate_series(date_trunc('month', min(Day)), max(Day) + 99, INTERVAL 1 MONTH)) AS first_day
        FROM balances_by_day
    ), days AS (
        SELECT last_day(first_day) AS MonthEnd, Account, arg_max(Total, Day) AS Total, arg_max(Tier, Day) AS Tier
        FROM ends JOIN balances_by_day ON Day <= last_day(first_day) GROUP BY ALL
    ), expected AS (SELECT MonthEnd, Tier, sum(Total) AS Points FROM days GROUP BY ALL),
    found AS (SELECT MonthEnd, Tier, sum(Points) AS Points FROM liability_by_month GROUP BY ALL)
    SELECT * FROM expected LEFT JOIN found USING (MonthEnd, Tier)
    WHERE expected.Points <> coalesce(found.Points, 0)
"""
"""Ends of months at which liability and balances by day differ, after the slow way: each balance at each end."""


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


def test_every_question_has_an_answer(database: Database, ledger: Ledger, tmp_path: Path) -> None:
    """There are thirteen questions with different names. Each one about files and the ledger gives a row here."""
    sold = line("INV1", "A", 50.5, City="Pune", DeliveryType="Home-Delivery")
    export(tmp_path / "export", sold, line("INV2", "A", 50.5, LineKind="return"))
    ledger.append((CARD, entry(1)), (CARD, entry(2, -40, kind=Kind.REDEEMED, total=60)))
    assert 13 == len(QUESTIONS) == len(BY_NAME)
    answers = {name: rows(database, each.sql) for name, each in BY_NAME.items() if name != "dead-letters"}
    assert all(answers.values()), answers
    assert [("1970-01", Decimal("1.00"), Decimal("0.40"), Decimal(0), Decimal(0))] == answers["points-by-month"]
    assert [("Pune", 1, Decimal("50.50"))] == answers["sales-by-city"]
    assert [("S1", 1, 0, 0.0)] == answers["repeat-rate"]
    assert [(0, 1, 50.5, 1.98, None)] == answers["campaign-uplift"]
    assert [("A", None, 1, 50.5)] == answers["top-items"]


def test_imported_and_added_points_are_issued_too(database: Database, ledger: Ledger) -> None:
    """They can expire and be spent like earned points. An adjustment that takes points does not count. A late change
    belongs to the month of the change before it. So the changes are those of the liability.
    """
    january = entry(1, 900, time=at(2026, 1, 31, 23), total=900)
    february = [
        entry(2, 500, time=at(2026, 2, 1, 0), total=1400),
        entry(3, 30_000, time=at(2026, 2, 2), kind=Kind.IMPORTED, total=31_400),
        entry(4, 9_500, time=at(2026, 2, 3), kind=Kind.ADJUSTED, total=40_900),
        entry(5, -300, time=at(2026, 2, 4), kind=Kind.ADJUSTED, total=40_600),
        entry(6, -20_000, time=at(2026, 2, 5), kind=Kind.EXPIRED, total=20_600),
        entry(7, -10_000, time=at(2026, 1, 31), kind=Kind.REDEEMED, total=10_600),
    ]
    ledger.append(*((CARD, each) for each in [january, *february]))
    months = [("2026-01", *map(Decimal, (9, 0, 0, 0))), ("2026-02", *map(Decimal, (400, 100, 200, -3)))]
    assert months == rows(database, BY_NAME["points-by-month"].sql)
    ends = (
        "SELECT sum(Points) FROM liability_by_month WHERE MonthEnd < '2026-03-01' GROUP BY MonthEnd ORDER BY MonthEnd"
    )
    assert [(Decimal(9),), (Decimal(106),)] == rows(database, ends)


def test_rates_are_shares_of_all_points_so_far(database: Database, ledger: Ledger) -> None:
    """A month can have more redeemed or expired points than issued points. The share of all points stays below 100 %.

    Imported points are issued points. Points that a return takes back stay issued.
    """
    ledger.append(
        ("A", entry(1, 50_000, time=at(2026, 1, 5), kind=Kind.IMPORTED)),
        ("A", entry(2, -10_000, time=at(2026, 1, 9), kind=Kind.RETURNED)),
        ("B", entry(1, 10_000, time=at(2026, 2, 5))),
        ("A", entry(3, -15_000, time=at(2026, 2, 6), kind=Kind.REDEEMED)),
        ("A", entry(4, -20_000, time=at(2026, 2, 7), kind=Kind.EXPIRED)),
        ("B", entry(2, -10_000, time=at(2026, 4, 1), kind=Kind.EXPIRED)),
    )
    assert ["Month", "IssuedSoFar", "RedeemedSoFar", "PercentSoFar"] == database.run(
        BY_NAME["redemption-rate"].sql
    ).column_names
    assert [("2026-01", 500, 0, 0), ("2026-02", 600, 150, 25), ("2026-04", 600, 150, 25)] == rows(
        database, BY_NAME["redemption-rate"].sql
    )
    assert [("2026-01", 500, 0, 0), ("2026-02", 600, 200, 33.33), ("2026-04", 600, 300, 50)] == rows(
        database, BY_NAME["breakage"].sql
    )


def test_a_rate_of_nothing_is_null(database: Database, ledger: Ledger) -> None:
    """The first entry of an account can take points."""
    ledger.append((CARD, entry(1, -300, kind=Kind.ADJUSTED)))
    assert [("1970-01", 0, 0, None)] == rows(database, BY_NAME["breakage"].sql)


def test_an_uplift_from_nothing_has_no_percentage(database: Database, ledger: Ledger) -> None:
    """All purchases of the first version cost nothing."""
    ledger.append((CARD, entry(1, total_amount=Decimal(0))), (CARD, entry(2, programme_version=1)))
    assert [None, None] == [uplift for *_, uplift in rows(database, BY_NAME["campaign-uplift"].sql)]


def test_debts_take_no_points_from_those_that_expire(database: Database, ledger: Ledger) -> None:
    """A debt of one account does not reduce what remains in others."""
    ledger.append(
        ("A", entry(1, 1000, expires_time=MARCH)),
        ("B", entry(1, 500)),
        ("C", entry(1, -300, kind=Kind.ADJUSTED)),
    )
    expected = [("2027-03", Decimal(10), Decimal(5)), ("never", Decimal(5), Decimal(0))]
    assert expected == rows(database, BY_NAME["expiring-points"].sql)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT * FROM nothing", "nothing does not exist"),
        ("INSTALL httpfs", "disabled by configuration"),
        ("LOAD httpfs", "disabled"),
        ("SELECT * FROM 'https://127.0.0.1:1/a.parquet'", "disabled by configuration"),
        ("SELECT * FROM 's3://bucket/a.parquet'", "disabled by configuration"),
        ("ATTACH '/etc/passwd'", "disabled by configuration"),
        ("SELECT * FROM read_text('/etc/hostname')", "disabled by configuration"),
        ("SET enable_external_access = true", "configuration has been locked"),
        ("SELECT * FROM settings", "settings does not exist"),
    ],
)
def test_a_statement_reaches_only_its_tables(opened: Callable[..., Database], statement: str, error: str) -> None:
    """It reaches no extension, no network, no file outside of the working directory, and no variable of Python."""
    settings = "a Python variable"
    assert settings
    with pytest.raises(SqlError, match=error):
        opened().run(statement)


def test_files_of_the_working_directory_can_be_joined(
    opened: Callable[..., Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An analyst's own CSV is a table too, and COPY writes one."""
    monkeypatch.chdir(tmp_path)
    database = opened()
    database.run("COPY (SELECT 1 AS a UNION ALL SELECT 2) TO 'mine.csv'")
    assert [(3,)] == rows(database, "SELECT sum(a)::INTEGER FROM 'mine.csv'")


def test_only_its_owner_can_read_what_does_not_fit_into_memory(
    opened: Callable[..., Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files can have cards. The working directory gets no file, and the database deletes its files at its end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setitem(database_module._CONFIGURATION, "memory_limit", "20MB")
    database = opened()
    database.run("CREATE TABLE t AS SELECT md5(range::VARCHAR) AS a FROM range(1_000_000)")
    (folder,) = (tmp_path / "temporary").iterdir()
    assert list(folder.iterdir())
    assert "0o700" == oct(folder.stat().st_mode & 0o777)
    database.close()
    assert ["temporary"] == [each.name for each in tmp_path.iterdir()]
    assert [] == list((tmp_path / "temporary").iterdir())


def test_a_failed_transaction_ends_with_rollback(opened: Callable[..., Database]) -> None:
    database = opened()
    database.run("BEGIN")
    with pytest.raises(SqlError, match="Could not convert"):
        database.run("SELECT 'x'::INTEGER")
    with pytest.raises(SqlError, match="ROLLBACK"):
        database.run("SELECT 1")
    database.run("ROLLBACK")
    assert [(1,)] == rows(database, "SELECT 1")


@pytest.mark.usefixtures("ledger")
def test_the_ledger_of_another_deployment_is_not_read(opened: Callable[..., Database]) -> None:
    database = opened(topic_prefix="staging-")
    for table in ("ledger_gap", "liability"):
        with pytest.raises(LedgerError, match="another topic: loyalty, and the settings say staging-loyalty"):
            database.run(f"FROM {table}")


def test_a_missing_source_says_what_to_do(opened: Callable[..., Database]) -> None:
    """The error is that of the source, and only statements that read the source fail."""
    database = opened()
    with pytest.raises(UserError, match="has no exported files: wait"):
        database.run("SELECT count(*) FROM invoices")
    with pytest.raises(LedgerUnavailableError):
        database.run("SELECT count(*) FROM liability")
    tables: list[str] = []
    with closing(Database(database._settings, tables.append)) as other, pytest.raises(LedgerUnavailableError):
        other.run("FROM ledger_entry UNION ALL FROM ledger_entry UNION ALL FROM ledger_entry")
    assert ["ledger_entry"] == tables
    with pytest.raises(UserError, match="from local folders only"):
        opened(export_dir="hdfs://name-node/export").run("FROM line_items")
    assert [(1, 2)] == rows(database, "SELECT 1 AS a, 2 AS a")
    assert ["a", "a_1"] == database.run("SELECT 1 AS a, 2 AS a").column_names
    assert ["a", "a_2", "a_1", "a_3"] == database.run("SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a").column_names
