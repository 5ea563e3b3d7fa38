"""The keys of customers in ``customer_line_items``, and the visits of members in ``repeat-rate``."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from services.domain.entries import Kind
from services.errors import UserError
from services.sql.database import Database
from services.sql.questions import BY_NAME
from tests.support.builders import CARD, entry
from tests.support.ledger import Ledger
from tests.unit.services.sql.rows import MARCH, at, export, line, rows


def test_customer_keys_end_with_the_account(
    opened: Callable[..., Database], keyed: Database, database: Database, ledger: Ledger, tmp_path: Path
) -> None:
    """All lines of a customer have one key, which names nobody. After an erasure they have none. A customer who comes
    back has another key.
    """
    export(tmp_path / "export", line("INV1", "A", 1.0), line("INV2", "A", 1.0), line("INV9", "A", 1.0))
    ledger.append((CARD, entry(1)), (CARD, entry(2)), ("other", entry(1, invoice_number="INV7")))
    with pytest.raises(UserError, match="LOYALTY_CUSTOMER_KEY_FILE"):
        database.run("FROM customer_line_items")
    statement = "SELECT CustomerKey FROM customer_line_items ORDER BY InvoiceNumber"

    [(first,), (second,), (stranger,)] = rows(keyed, statement)

    assert first == second
    assert first
    assert stranger is None
    assert CARD not in first
    assert [(first,), (second,), (None,)] == rows(keyed, statement)
    assert first not in str(rows(opened(customer_key_file=tmp_path / "other.key"), statement))
    ledger.append((CARD, entry(3, -200, kind=Kind.ERASED, total=0)))
    assert [(None,)] * 3 == rows(keyed, statement)
    ledger.append((CARD, entry(1, opened_time=9_000, time=9_001, invoice_number="INV9")))
    [*before, (back,)] = rows(keyed, statement)
    assert [(None,)] * 2 == before
    assert back not in {None, first}


def test_an_exchange_belongs_to_the_customer_who_bought(keyed: Database, ledger: Ledger, tmp_path: Path) -> None:
    """The account that loses the points of the returned item is older, and belongs to another customer."""
    export(tmp_path / "export", line("INV1", "CHAIR", 9.0), line("X", "TABLE", 30.0), line("INV2", "LAMP", 5.0))
    ledger.append(("other", entry(1, invoice_number="INV1")), (CARD, entry(1, invoice_number="INV2")))
    taken = {"kind": Kind.RETURNED, "invoice_number": "X"}
    ledger.append(("other", entry(2, -100, total=0, **taken)))
    ledger.append((CARD, entry(2, 0, reason="purchase-unknown", **taken)), (CARD, entry(3, invoice_number="X")))
    statement = "SELECT CustomerKey FROM customer_line_items ORDER BY InvoiceNumber"

    [(other,), (own,), (exchange,)] = rows(keyed, statement)

    assert exchange == own != other


def test_a_return_belongs_to_the_customer_who_bought_also_after_an_erasure_of_another(
    keyed: Database, ledger: Ledger, tmp_path: Path
) -> None:
    """The erased customer has handed back the items. This account is older, and did not know the purchase."""
    export(tmp_path / "export", line("INV1", "CHAIR", 9.0), line("R", "CHAIR", -9.0, LineKind="return"))
    ledger.append(("other", entry(1, invoice_number="INV0")), (CARD, entry(1, invoice_number="INV1")))
    returned = {"kind": Kind.RETURNED, "invoice_number": "R"}
    ledger.append(("other", entry(2, 0, reason="purchase-unknown", **returned)), (CARD, entry(2, -100, **returned)))
    ledger.append(("other", entry(3, -100, kind=Kind.ERASED, total=0)))
    statement = "SELECT CustomerKey FROM customer_line_items ORDER BY InvoiceNumber"

    [(bought,), (handed_back,)] = rows(keyed, statement)

    assert bought == handed_back is not None


@pytest.mark.parametrize("late", [-3, 0, 30])
def test_a_number_that_is_used_again_keeps_its_customers_apart(
    keyed: Database, ledger: Ledger, tmp_path: Path, late: int
) -> None:
    """A till can be offline, or its clock can be wrong. The last buyer of the number is not a member."""
    year, days = 365 * 86_400_000, late * 86_400_000
    times = [MARCH, MARCH + year, MARCH + 2 * year]
    for number, time_ in enumerate(times):
        day = datetime.fromtimestamp(time_ / 1000, UTC).date()
        export(tmp_path / "export", line("X", "A", 1.0, CreatedTime=time_), batch=number, day=day)
    for number, card in enumerate((CARD, "other")):
        ledger.append((card, entry(1, invoice_number="X", time=times[number] + days)))
    ids = dict(rows(keyed, "SELECT customer_key, account_id FROM customer_keys"))

    found = rows(keyed, "SELECT CustomerKey FROM customer_line_items ORDER BY CreatedTime")

    assert [1, 2, None] == [ids.get(key) for (key,) in found]


def test_an_entry_of_an_invoice_without_a_usable_clock_has_its_lines(
    keyed: Database, ledger: Ledger, tmp_path: Path
) -> None:
    export(tmp_path / "export", line("INV1", "A", 1.0, CreatedTime=None), line("INV1", "B", 1.0, CreatedTime=None))
    ledger.append((CARD, entry(1)))
    [(first,), (second,)] = rows(keyed, "SELECT CustomerKey FROM customer_line_items")
    assert first == second is not None


@pytest.mark.parametrize("days", [0, 100])
@pytest.mark.parametrize("clock", [True, False])
def test_a_number_of_two_stores_gives_each_basket_to_its_customer(
    keyed: Database, ledger: Ledger, tmp_path: Path, *, days: int, clock: bool
) -> None:
    """The stores sell a minute apart, or a hundred days. An entry has one basket, also if nothing tells which one."""
    for number, (card, store) in enumerate([(CARD, "S1"), ("other", "S2")]):
        time_ = MARCH + number * (60_000 + days * 86_400_000)
        day = datetime.fromtimestamp(time_ / 1000, UTC).date()
        created = time_ if clock else None
        export(tmp_path / "export", line("X", "A", 1.0, StoreID=store, CreatedTime=created), batch=number, day=day)
        ledger.append((card, entry(1, invoice_number="X", time=time_ + 1_000)))
    ids = dict(rows(keyed, "SELECT customer_key, account_id FROM customer_keys"))

    found = rows(keyed, "SELECT CustomerKey FROM customer_line_items ORDER BY StoreID")

    assert ([1, 2] if clock or days else [1, None]) == [ids.get(key) for (key,) in found]


def test_an_entry_of_an_evening_belongs_to_the_invoice_of_the_same_day(
    keyed: Database, ledger: Ledger, tmp_path: Path
) -> None:
    """The entry is nearer to the next midnight. The invoice of the next day arrives weeks later."""
    for store, time_, entered, card in (
        ("S1", at(2026, 11, 1, 22), at(2026, 11, 1, 22), CARD),
        ("S2", at(2026, 11, 2, 10), at(2026, 11, 25), "other"),
    ):
        day = datetime.fromtimestamp(time_ / 1000, UTC).date()
        export(tmp_path / "export", line("X", "A", 1.0, StoreID=store, CreatedTime=time_), day=day)
        ledger.append((card, entry(1, invoice_number="X", time=entered)))
    statement = """
        SELECT StoreID, account_id FROM customer_line_items LEFT JOIN customer_keys ON CustomerKey = customer_key
    """
    assert [("S1", 1), ("S2", 2)] == sorted(rows(keyed, statement))
    assert [("S1", 1, 0, 0.0), ("S2", 1, 0, 0.0)] == rows(keyed, BY_NAME["repeat-rate"].sql)


def test_a_repeated_visit_under_the_same_number_counts(database: Database, ledger: Ledger, tmp_path: Path) -> None:
    export(tmp_path / "export", line("X", "A", 1.0), line("X", "A", 1.0, CreatedTime=MARCH))
    ledger.append((CARD, entry(1, invoice_number="X")), (CARD, entry(2, invoice_number="X")))
    assert [("S1", 1, 1, 100.0)] == rows(database, BY_NAME["repeat-rate"].sql)


def use_a_number_again(ledger: Ledger, folder: Path, kind: Kind, days: int) -> None:
    """The older account has bought Y, and some days before X. That earlier basket is not in the files."""
    before = MARCH - days * 86_400_000
    bought = (CARD, entry(1, invoice_number="X", time=before)), (CARD, entry(2, invoice_number="Y", time=MARCH))
    ledger.append(*bought)
    ledger.append(("other", entry(1, invoice_number="X", time=MARCH, kind=kind)))
    export(folder / "export", *(line(number, "A", 1.0, CreatedTime=MARCH) for number in "XY"), day=date(2027, 3, 31))


@pytest.mark.parametrize(("kind", "days"), [(Kind.EARNED, 365), (Kind.EARNED, 3), (Kind.RETURNED, 365)])
def test_a_basket_belongs_to_its_own_buyer_also_if_an_earlier_basket_is_not_in_the_files(
    keyed: Database, ledger: Ledger, tmp_path: Path, kind: Kind, days: int
) -> None:
    use_a_number_again(ledger, tmp_path, kind, days)
    ids = dict(rows(keyed, "SELECT customer_key, account_id FROM customer_keys"))

    found = rows(keyed, "SELECT CustomerKey FROM customer_line_items ORDER BY InvoiceNumber")

    assert [2, 1] == [ids[key] for (key,) in found]


def test_baskets_of_two_years_without_a_usable_clock_are_visits_of_two_members(
    database: Database, ledger: Ledger, tmp_path: Path
) -> None:
    for year, card in ((2026, CARD), (2027, "other")):
        unusable = line("X", "A", 1.0, CreatedTime=-year, DateSource="broker")
        export(tmp_path / "export", unusable, day=date(year, 3, 31), batch=year)
        time_ = int(datetime(year, 3, 31, tzinfo=UTC).timestamp() * 1000)
        ledger.append((card, entry(1, invoice_number="X", time=time_)))
    assert [("S1", 2, 0, 0.0)] == rows(database, BY_NAME["repeat-rate"].sql)


def test_a_basket_is_a_visit_of_its_own_buyer(database: Database, ledger: Ledger, tmp_path: Path) -> None:
    use_a_number_again(ledger, tmp_path, Kind.EARNED, 365)
    assert [("S1", 2, 0, 0.0)] == rows(database, BY_NAME["repeat-rate"].sql)


@pytest.mark.parametrize("between", [100 * 86_400_000, 60_000])
def test_a_number_of_two_stores_is_a_visit_to_one_of_them(
    database: Database, ledger: Ledger, tmp_path: Path, between: int
) -> None:
    """Each store has one member, also if the invoices are of the same day."""
    for number, (card, store) in enumerate([(CARD, "S1"), ("other", "S2")]):
        time_ = MARCH + number * between
        day = datetime.fromtimestamp(time_ / 1000, UTC).date()
        export(tmp_path / "export", line("X", "A", 1.0, StoreID=store, CreatedTime=time_), batch=number, day=day)
        ledger.append((card, entry(1, invoice_number="X", time=time_ + 1_000)))
    assert [("S1", 1, 0, 0.0), ("S2", 1, 0, 0.0)] == rows(database, BY_NAME["repeat-rate"].sql)
