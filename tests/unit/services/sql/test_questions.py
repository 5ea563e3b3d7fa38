"""The answers of the questions of the catalogue."""

from decimal import Decimal
from pathlib import Path

from services.domain.entries import Kind
from services.sql.database import Database
from services.sql.questions import BY_NAME, QUESTIONS
from tests.support.builders import CARD, entry
from tests.support.ledger import Ledger
from tests.unit.services.sql.rows import MARCH, at, export, line, rows


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
