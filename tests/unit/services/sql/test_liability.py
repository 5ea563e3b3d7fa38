"""The points that the programme owes its customers, now and at the end of each month."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from services.domain.entries import Entry, Kind
from services.sql.database import Database
from services.sql.questions import BY_NAME
from tests.support.account_histories import HISTORIES, Processed
from tests.support.builders import CARD, entry
from tests.support.examples import examples
from tests.support.ledger import Ledger
from tests.unit.services.sql.rows import MARCH, at, rows

_LAST_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
MAY = int(datetime(2027, 6, 1, tzinfo=UTC).timestamp() * 1000)
"""The end of the last day of May: the first millisecond of June."""
YEARS = 3 * 365 * 86_400_000


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
