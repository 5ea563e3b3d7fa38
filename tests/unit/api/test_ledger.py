"""The entries and the statement of a customer over HTTP, from a ledger in both databases: api.routers.ledger."""

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from sqlalchemy import delete, insert, update
from structlog.testing import capture_logs

from api.http import error_handlers, openapi
from api.routers import ledger as router
from api.security.caller import Caller
from services.api_keys.keys import Scope
from services.domain.entries import Kind
from services.domain.formats import to_milliseconds
from services.ledger.database import LedgerError
from services.ledger.queries import LedgerQueries
from services.ledger.tables import ACCOUNT, PROPERTY
from services.settings import Settings
from tests.support.builders import entry
from tests.support.ledger import Ledger
from tests.support.openapi import settings_of_requests

CARD = "9265846829"


def at(day: str) -> int:
    return to_milliseconds(datetime.fromisoformat(day).replace(tzinfo=UTC))


OPENED = at("2026-01-01")
DAYS = ["2026-01-01", "2026-01-31T23:59:59.999", "2026-02-01", "2026-02-28", "2026-03-01"]
KINDS = [Kind.EARNED, Kind.EARNED, Kind.REDEEMED, Kind.EARNED, Kind.EXPIRED]
POINTS = [1000, 2005, -500, 300, -700]
ENTRIES = [
    entry(number, points, kind=kind, time=at(day), opened_time=OPENED, total=sum(POINTS[:number]))
    for number, (day, kind, points) in enumerate(zip(DAYS, KINDS, POINTS, strict=True), start=1)
]


@pytest.fixture
def app(ledger: Ledger) -> Iterator[FastAPI]:
    app = FastAPI()
    error_handlers.install(app)
    openapi.install(app)
    app.include_router(router.router)
    app.include_router(router.invoices)
    app.state.dependencies = SimpleNamespace(ledger=LedgerQueries(Settings(ledger_url=ledger.url)), security=None)
    yield app
    app.state.dependencies.ledger.close()


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("card", ["Ж", "a b", "a?b", "a#b", "a\\b", "a\tb", "[a", "a\0b"])
def test_links_name_the_card_of_the_request(client: TestClient, ledger: Ledger, card: str) -> None:
    ledger.append(*((card, each) for each in ENTRIES))
    assert [[5, 4], [3, 2], [1]] == [*pages(client, f"/v1/customers/{quote(card, safe='')}/entries?limit=2")]


def problem(client: TestClient, path: str) -> tuple[int, str]:
    answer = client.get(path)
    assert "application/problem+json" == answer.headers["content-type"]
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


def pages(client: TestClient, path: str) -> Iterator[list[int]]:
    """The sequences of each page, found by the links."""
    url: str | None = path
    while url:
        answer = client.get(url)
        assert 200 == answer.status_code, answer.text
        yield [each["Sequence"] for each in answer.json()["entries"]]
        url = answer.links.get("next", {}).get("url")
        assert (url is None) == (answer.json()["next"] is None)


def test_an_entry_has_the_members_of_its_record(client: TestClient, ledger: Ledger) -> None:
    """Points are texts with two decimals, and times are in UTC. Nothing is cached."""
    ledger.append((CARD, entry(1, -5, total=-5, available=-5, time=at("2026-01-31"), opened_time=OPENED, reason="é")))
    answer = client.get(f"/v1/customers/{CARD}/entries")
    assert "private, no-store" == answer.headers["cache-control"]
    assert answer.json() == {
        "entries": [
            {
                "Sequence": 1,
                "OpenedTime": "2026-01-01T00:00:00.000Z",
                "UpdatedTime": "2026-01-31T00:00:00.000Z",
                "Kind": "earned",
                "EarnedLoyaltyPoints": "-0.05",
                "TotalLoyaltyPoints": "-0.05",
                "AvailableLoyaltyPoints": "-0.05",
                "PendingLoyaltyPoints": "0.00",
                "ReservedLoyaltyPoints": "0.00",
                "Tier": None,
                "ProgrammeVersion": 0,
                "EventID": "INV1",
                "InvoiceNumber": "INV1",
                "TotalAmount": 50.5,
                "ExpiresTime": None,
                "Reason": "é",
                "Actor": "",
                "Counterparty": "",
            }
        ],
        "next": None,
    }


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
def test_pages_are_the_entries_newest_first(client: TestClient, ledger: Ledger, limit: int) -> None:
    """The pages of any length contain each entry once, and no entry of the card's erased account."""
    older = [entry(number, opened_time=1) for number in (1, 2)]
    ledger.append(*((CARD, each) for each in [*older, *ENTRIES]), ("OTHER", entry(1)))
    found = list(pages(client, f"/v1/customers/{CARD}/entries?limit={limit}"))
    assert [5, 4, 3, 2, 1] == [sequence for page in found for sequence in page]
    assert all(limit == len(page) for page in found[:-1])


def test_an_older_account_whose_erasure_was_missed_hides_no_entry_of_the_newest(
    client: TestClient, ledger: Ledger
) -> None:
    """A database of an earlier release can have two accounts with the card."""
    ledger.append((CARD, entry(1, opened_time=1)), (CARD, ENTRIES[0]))
    with ledger.engine.begin() as connection:
        connection.execute(update(ACCOUNT).values(card=CARD))
    (found,) = client.get(f"/v1/customers/{CARD}/entries").json()["entries"]
    assert "2026-01-01T00:00:00.000Z" == found["UpdatedTime"]


def test_new_entries_do_not_change_later_pages(client: TestClient, ledger: Ledger) -> None:
    """A cursor is a position and not a count."""
    ledger.append(*((CARD, each) for each in ENTRIES[:4]))
    walk = pages(client, f"/v1/customers/{CARD}/entries?limit=2")
    assert [4, 3] == next(walk)
    ledger.append((CARD, ENTRIES[4]))
    assert [2, 1] == next(walk)


def test_a_cursor_of_an_erased_account_finds_no_entry_of_the_next_one(client: TestClient, ledger: Ledger) -> None:
    ledger.append(*((CARD, each) for each in ENTRIES[:2]))
    walk = pages(client, f"/v1/customers/{CARD}/entries?limit=1")
    assert [2] == next(walk)
    ledger.append((CARD, entry(3, -3005, kind=Kind.ERASED, total=0, opened_time=OPENED)))
    ledger.append((CARD, entry(1, opened_time=OPENED + 1)))
    assert [[]] == list(walk)


@pytest.mark.parametrize(
    ("query", "sequences"),
    [
        ("kind=earned", [4, 2, 1]),
        ("kind=redeemed&kind=expired", [5, 3]),
        ("kind=tier", []),
        ("from=2026-02-01", [5, 4, 3]),
        ("to=2026-01-31", [2, 1]),
        ("from=2026-01-31&to=2026-02-28", [4, 3, 2]),
        ("from=2026-02-28&to=2026-02-28", [4]),
        ("kind=earned&from=2026-01-02", [4, 2]),
        ("from=0001-01-01&to=9999-12-31", [5, 4, 3, 2, 1]),
    ],
)
def test_entries_are_filtered_by_kind_and_day(
    client: TestClient, ledger: Ledger, query: str, sequences: list[int]
) -> None:
    """Both days are included. Links keep the filter."""
    ledger.append(*((CARD, each) for each in ENTRIES))
    found = list(pages(client, f"/v1/customers/{CARD}/entries?limit=1&{query}"))
    assert sequences == [sequence for page in found for sequence in page]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # The database makes no difference.
@pytest.mark.parametrize(
    "query",
    [
        *("from=yesterday", "from=1700000000", "to=2026-02-30", "from=2026-02-02&to=2026-02-01", "kind=bogus"),
        *("limit=0", "limit=1001", "cursor=%00", "cursor=MS4", "cursor=MQ==", "cursor=%C3%A9"),
        "cursor=OTk5OTk5OTk5OTk5OTk5OTk5OS4x",
    ],
)
def test_wrong_parameters_are_named(client: TestClient, ledger: Ledger, query: str) -> None:
    """A wrong date, kind or cursor is 422."""
    ledger.append((CARD, ENTRIES[0]))
    assert (422, "invalid-parameters") == problem(client, f"/v1/customers/{CARD}/entries?{query}")


@pytest.mark.parametrize("path", ["entries", "statement"])
def test_an_unknown_or_erased_customer_is_not_found(client: TestClient, ledger: Ledger, path: str) -> None:
    """A card without entries is 404. After an erasure the card and the pseudonym are 404."""
    assert (404, "unknown-customer") == problem(client, f"/v1/customers/{CARD}/{path}")
    ledger.append((CARD, entry(1)))
    assert 200 == client.get(f"/v1/customers/{CARD}/{path}").status_code
    ledger.append((CARD, entry(2, -100, kind=Kind.ERASED, total=0)))
    assert (404, "unknown-customer") == problem(client, f"/v1/customers/{CARD}/{path}")
    pseudonym = ledger.appender._pseudonyms.of(CARD)
    assert (404, "unknown-customer") == problem(client, f"/v1/customers/{pseudonym}/{path}")
    ledger.append((CARD, entry(1, opened_time=9_000)))
    assert [[1]] == list(pages(client, f"/v1/customers/{CARD}/entries"))


@pytest.mark.parametrize("url", ["sqlite:////nowhere/ledger.sqlite", "postgresql://u@127.0.0.1:1/none"])
def test_an_unavailable_ledger_is_a_problem(client: TestClient, app: FastAPI, url: str) -> None:
    """503 with Retry-After."""
    path = f"/v1/customers/{CARD}/entries"
    working, app.state.dependencies.ledger = app.state.dependencies.ledger, LedgerQueries(Settings(ledger_url=url))
    assert (503, "ledger-unavailable") == problem(client, path)
    assert "5" == client.get(path).headers["retry-after"]
    app.state.dependencies.ledger.close()
    app.state.dependencies.ledger = working


def test_a_database_without_a_ledger_is_a_problem(database_url: str) -> None:
    """A database without the tables of the ledger is 503."""
    app = FastAPI()
    error_handlers.install(app)
    app.include_router(router.router)
    app.state.dependencies = SimpleNamespace(ledger=LedgerQueries(Settings(ledger_url=database_url)), security=None)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert (503, "ledger-unavailable") == problem(client, f"/v1/customers/{CARD}/statement")
    app.state.dependencies.ledger.close()


def test_the_ledger_of_another_deployment_is_a_problem(client: TestClient, app: FastAPI, ledger: Ledger) -> None:
    """No response has its entries, also if the connection is not new. The log says what to correct."""
    ledger.append((CARD, ENTRIES[0]))
    app.state.dependencies.ledger.close()
    app.state.dependencies.ledger = LedgerQueries(Settings(ledger_url=ledger.url, topic_prefix="staging-"))
    with capture_logs() as logs:
        for path in (f"customers/{CARD}/entries", f"customers/{CARD}/statement", "invoices/INV1/customers"):
            assert (503, "ledger-unavailable") == problem(client, f"/v1/{path}")
    assert 3 == len(logs)
    assert all("loyalty, and the settings say staging-loyalty; correct LOYALTY_TOPIC" in each["error"] for each in logs)


def test_a_ledger_that_is_bound_later_is_checked_then(app: FastAPI, ledger: Ledger) -> None:
    """A connection from before the first start of the ledger is not checked for ever."""
    with ledger.engine.begin() as connection:
        (topic,) = connection.scalars(delete(PROPERTY).where(PROPERTY.c.name == "topic").returning(PROPERTY.c.value))
    assert [] == app.state.dependencies.ledger.gaps()
    with ledger.engine.begin() as connection:
        connection.execute(insert(PROPERTY).values(name="topic", value=f"other-{topic}"))
    with pytest.raises(LedgerError, match="another topic: other-loyalty, and the settings say loyalty"):
        app.state.dependencies.ledger.gaps()


def statement(client: TestClient, query: str = "") -> list[dict[str, str]]:
    answer = client.get(f"/v1/customers/{CARD}/statement{query}")
    assert (200, "text/csv; charset=utf-8") == (answer.status_code, answer.headers["content-type"])
    assert "private, no-store" == answer.headers["cache-control"]
    return list(csv.DictReader(io.StringIO(answer.text)))


@pytest.mark.parametrize(
    ("query", "opening", "points", "closing"),
    [
        ("", "0.00", ["10.00", "20.05", "-5.00", "3.00", "-7.00"], "21.05"),
        ("?from=2026-02-01&to=2026-02-28", "30.05", ["-5.00", "3.00"], "28.05"),
        ("?to=2026-01-31", "0.00", ["10.00", "20.05"], "30.05"),
        ("?from=2026-03-02", "21.05", [], "21.05"),
        ("?to=2025-12-31", "0.00", [], "0.00"),
    ],
)
def test_a_statement_adds_up(
    client: TestClient, ledger: Ledger, query: str, opening: str, points: list[str], closing: str
) -> None:
    """The statement has the opening balance, the entries in order and the closing balance."""
    ledger.append(*((CARD, each) for each in ENTRIES))
    first, *rows, last = statement(client, query)
    assert ("opening-balance", opening) == (first["Kind"], first["TotalPoints"])
    assert points == [row["Points"] for row in rows]
    assert ("closing-balance", closing) == (last["Kind"], last["TotalPoints"])


@pytest.mark.parametrize(
    ("query", "points", "closing"),
    [("?to=2026-01-31", ["10.00"], "10.00"), ("?from=2026-02-01", ["2.00", "-3.00"], "9.00")],
)
def test_a_late_entry_belongs_to_the_day_of_the_entry_before_it(
    client: TestClient, ledger: Ledger, query: str, points: list[str], closing: str
) -> None:
    """The third entry has a time of January. Without this rule, the closing balance of January would be 7.00, which the
    customer never had.
    """
    times, totals = [OPENED, at("2026-02-01"), at("2026-01-31")], [1000, 1200, 900]
    changes = zip([1000, 200, -300], times, totals, strict=True)
    entries = [
        entry(number, change, time=time, total=total, opened_time=OPENED)
        for number, (change, time, total) in enumerate(changes, start=1)
    ]
    ledger.append(*((CARD, each) for each in entries))
    _, *rows, last = statement(client, query)
    assert (points, closing) == ([row["Points"] for row in rows], last["TotalPoints"])


def test_a_statement_adds_up_without_the_first_entries(client: TestClient, ledger: Ledger) -> None:
    """The opening balance includes entries that are older than the ledger."""
    ledger.append(*((CARD, each) for each in ENTRIES[2:]))
    first, *_, last = statement(client)
    assert ("30.05", "21.05") == (first["TotalPoints"], last["TotalPoints"])


def test_a_missing_entry_changes_no_statement_of_another_time(client: TestClient, ledger: Ledger) -> None:
    """The ledger lacks the first entry of February. Both balances are totals that the account had."""
    ledger.append(*((CARD, each) for each in ENTRIES if each.sequence != 3))
    queries = ("?to=2026-01-31", "?from=2026-02-01&to=2026-02-28", "?from=2026-03-01")
    statements = [[row["TotalPoints"] for row in statement(client, query)] for query in queries]
    assert [["0.00", "10.00", "30.05", "30.05"], ["30.05", "28.05", "28.05"], ["28.05", "21.05", "21.05"]] == statements


def test_long_statements_are_complete(client: TestClient, ledger: Ledger) -> None:
    """They contain each entry once, in order, also around a gap."""
    numbers = [number for number in range(1, 2_502) if number != 500]
    ledger.append(*((CARD, entry(number)) for number in numbers))
    _, *rows, last = statement(client)
    assert [f"INV{number}" for number in numbers] == [row["InvoiceNumber"] for row in rows]
    assert "2501.00" == last["TotalPoints"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # The database makes no difference.
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ('=HYPERLINK("http://x")', '\'=HYPERLINK("http://x")'),
        *((text, f"'{text}") for text in ("+1", "-1", "@SUM(A1)", "\uff1d1+1")),
        *((f"x{separator}=1", f"x{separator}'=1") for separator in (";", "\t", "\r", "\n", ";;")),
        ("\t=1;-1", "\t'=1;'-1"),
        ("a=1; b-c", "a=1; b-c"),
    ],
)
def test_no_text_becomes_a_formula(client: TestClient, ledger: Ledger, words: str, shown: str) -> None:
    """A part that a spreadsheet would run as a formula gets an apostrophe before it, also if the spreadsheet begins a
    cell after a semicolon, a tab or a line break. Negative points stay numbers.
    """
    fields = ("reason", "actor", "counterparty", "event_id", "tier", "invoice_number")
    ledger.append((CARD, entry(1, -100, **dict.fromkeys(fields, words))))
    _, row, _ = statement(client)
    columns = ("Reason", "Actor", "Counterparty", "EventID", "Tier", "InvoiceNumber")
    assert [shown] * len(fields) == [row[name] for name in columns]
    assert "-1.00" == row["Points"]


def test_a_text_with_separators_stays_in_its_cell(client: TestClient, ledger: Ledger) -> None:
    """CSV readers get commas, quotes and line breaks unchanged."""
    words = 'late, "very"\r\nlate; sorry'
    ledger.append((CARD, entry(1, reason=words)))
    assert words == statement(client)[1]["Reason"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("path", ["entries", "statement"])
def test_answers_keep_to_the_openapi_document(app: FastAPI, ledger: Ledger, path: str, mode: GenerationMode) -> None:
    """Schemathesis finds only responses of the OpenAPI document, for valid and invalid requests."""
    ledger.append(("0", entry(1)))
    operation = schemathesis.openapi.from_asgi("/openapi.json", app)[f"/v1/customers/{{card}}/{path}"]["GET"]

    @settings_of_requests(40)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        # A schema cannot describe which cursors exist, and that ``from`` is before ``to``.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    check()


@pytest.mark.parametrize("kind", [Kind.MOVED_OUT, Kind.FORWARDED])
@pytest.mark.parametrize(("limit", "shown"), [(CARD, ""), (None, "NEW")])
def test_a_caller_with_one_card_does_not_see_the_new_card_of_its_account(
    app: FastAPI, ledger: Ledger, kind: Kind, limit: str | None, shown: str
) -> None:
    """The balance hides the new card from it, too. Other counterparties stay."""
    ledger.append((CARD, entry(1, -100, kind=Kind.SENT, total=900, opened_time=OPENED, counterparty="FRIEND")))
    ledger.append((CARD, entry(2, -900, kind=kind, total=0, opened_time=OPENED, counterparty="NEW")))
    client = client_of(app, limit)
    entries = client.get(f"/v1/customers/{CARD}/entries").json()["entries"]
    assert [shown, "FRIEND"] == [each["Counterparty"] for each in entries]
    assert ["FRIEND", shown] == [row["Counterparty"] for row in statement(client)[1:-1]]


@pytest.mark.parametrize(("limit", "shown"), [(CARD, ""), (None, "token:friend")])
def test_a_caller_with_one_card_does_not_see_who_sent_points(
    app: FastAPI, ledger: Ledger, limit: str | None, shown: str
) -> None:
    """The sender is another customer, and the actor is the subject of its token. The actors of other kinds stay."""
    received = entry(1, 100, kind=Kind.RECEIVED, opened_time=OPENED, counterparty="FRIEND", actor="token:friend")
    refused = replace(received, sequence=2, kind=Kind.REFUSED, points=0)
    adjusted = entry(3, kind=Kind.ADJUSTED, opened_time=OPENED, actor="key:1f")
    ledger.append(*((CARD, each) for each in (received, refused, adjusted)))
    client = client_of(app, limit)
    entries = client.get(f"/v1/customers/{CARD}/entries").json()["entries"]
    assert ["key:1f", shown, shown] == [each["Actor"] for each in entries]
    assert [shown, shown, "key:1f"] == [row["Actor"] for row in statement(client)[1:-1]]


def client_of(app: FastAPI, card: str | None) -> TestClient:
    """A client whose caller is limited to a card; None for no limit."""

    async def as_caller(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "caller": Caller("token:anna", frozenset(Scope), card=card)}, receive, send)

    return TestClient(as_caller)


def test_customers_are_found_by_an_invoice(client: TestClient, ledger: Ledger) -> None:
    """Each card once, although the invoice has two entries. An erased customer is not found any more. The number may
    have a slash.
    """
    for card in (CARD, "other"):
        for number in (1, 2):
            total = 100 * number
            ledger.append((card, entry(number, 100, total=total, opened_time=OPENED, invoice_number=f"I/{card}")))
    ledger.append(("other", entry(3, -200, kind=Kind.ERASED, total=0, opened_time=OPENED)))
    assert [CARD] == client.get(f"/v1/invoices/I%2F{CARD}/customers").json()["customers"]
    assert [] == client.get("/v1/invoices/I/other/customers").json()["customers"]
    nothing = client.get("/v1/invoices/nothing/customers")
    assert ([], "private, no-store") == (nothing.json()["customers"], nothing.headers["cache-control"])
    assert 422 == client.get(f"/v1/invoices/{'x' * 129}/customers").status_code


def test_a_caller_finds_its_own_card_among_many_customers_of_an_invoice(app: FastAPI, ledger: Ledger) -> None:
    """A response has at most 100 cards, and the caller's card is the last one of 101."""
    cards = [f"C{number:03}" for number in range(101)]
    ledger.append(*((card, entry(1, 100, total=100, opened_time=OPENED, invoice_number="I")) for card in cards))

    def found_by(card: str | None) -> list[str]:
        customers: list[str] = client_of(app, card).get("/v1/invoices/I/customers").json()["customers"]
        return customers

    assert (cards[:100], ["C100"], []) == (found_by(None), found_by("C100"), found_by("other"))
