"""The oracle of the demo computes the day of the helpdesk as the domain does."""

from collections import Counter
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

from infra.demo.helpdesk import NEW_CARD, expect_day, plan
from infra.demo.oracle import Sent, Version
from services.cli.opening_balances import import_commands
from services.codecs.state import decode_account
from services.domain.account.model import Account, AccountState
from services.domain.entries import Kind
from services.domain.events import Event, Replace
from services.domain.formats import to_milliseconds
from services.domain.programme import DAY, Programme, Programmes, TimeBasis
from services.opening_balances.file import OpeningBalances
from services.pos_simulator.invoicing import opening, since_opening
from services.pos_simulator.simulation import Options, Simulation
from services.pseudonyms import KEY_BYTES, Pseudonyms
from tests.support.builders import IDS, purchase
from tests.support.loyalty_stream import LoyaltyStream

OPTIONS = Options(count=1_000, customers=150, returns=0.1, exchanges=0.05, offline=0.1)
MORNING, AFTERNOON = (opening(OPTIONS.day) + since_opening(part) for part in (0, 0.5))
VERSIONS = {
    MORNING: Version(Decimal("0.02"), valid_days=90),
    AFTERNOON: Version(Decimal("0.04"), valid_days=60, is_pending=True),
}
PROGRAMMES = Programmes.of(
    Programme(
        number,
        since,
        factor,
        time_basis=TimeBasis.TILL,
        largest_backdating=3 * DAY,
        valid_for=days * DAY,
        pending=7 * DAY * is_pending,
    )
    for number, (since, (factor, days, is_pending)) in enumerate(VERSIONS.items(), start=1)
)
SIMULATED = [Sent(m.key, m.value, m.invoice) for m in Simulation(OPTIONS, IDS).messages()]
ARRIVED = MORNING + DAY
"""Every invoice arrives on the next day."""


def events_of(messages: list[Sent], first: int) -> list[tuple[str, Event]]:
    """The events of the messages, each number once, one each millisecond from the time ``first`` on."""
    once = {each.invoice["InvoiceNumber"]: each.invoice for each in reversed(messages) if each.invoice}
    kept = [each.invoice for each in messages if each.invoice and once[each.invoice["InvoiceNumber"]] is each.invoice]
    return [(one["CustomerCardNo"] or "", purchase(first + number, one)) for number, one in enumerate(kept)]  # type: ignore[arg-type]


def standing(account: AccountState) -> tuple[Decimal, tuple[int, Decimal]]:
    """The pending points, and when the next points expire and how many."""
    assert isinstance(account, Account)
    of_entry = account.balance_details
    expiring = of_entry.next_expiry_time, Decimal(of_entry.next_expiry_points).scaleb(-2)
    return Decimal(account.pending).scaleb(-2), expiring


def test_the_oracle_agrees_with_the_domain() -> None:
    """Receipts of two versions that come a day later, an import that comes twice, and a lost card."""
    sent, helpdesk = plan(SIMULATED, VERSIONS, IDS)
    expected = expect_day(sent, helpdesk, VERSIONS[MORNING].factor)
    opening_balances = OpeningBalances()
    midnight = datetime.combine(helpdesk.imported_until + timedelta(days=1), time(), UTC)
    for card, points in helpdesk.imported.items():
        opening_balances.cards[card] = {to_milliseconds(midnight): int(points.scaleb(2))}
    imports = [*import_commands(opening_balances, "opening", "", "", Pseudonyms(bytes(KEY_BYTES)))] * 2
    stream = LoyaltyStream(PROGRAMMES)

    stream.read([*imports, *events_of(sent, ARRIVED)])
    stream.read([])
    replacing = Replace(append_time=ARRIVED + DAY, command_id="lost", counterparty=NEW_CARD)
    stream.read([(helpdesk.lost_card, replacing)])
    stream.read(events_of([*helpdesk.late], ARRIVED + 2 * DAY))
    for _ in range(3):
        stream.read([])

    assert len(helpdesk.late) == 2
    assert {helpdesk.lost_card: NEW_CARD} == expected.moved
    assert {card: Decimal(stream.total(card)).scaleb(-2) for card in expected.earned} == {
        card: expected.points_of(card) for card in expected.earned
    }
    assert expected.points_of(helpdesk.lost_card) == 0 < expected.points_of(NEW_CARD)
    of_invoices = {Kind.EARNED, Kind.RETURNED}
    for card, entries in stream.entries.items():
        others = Counter((str(e.kind), Decimal(e.points).scaleb(-2)) for e in entries if e.kind not in of_invoices)
        assert expected.commands[card] == others
        earned = {e.invoice_number: Decimal(e.points).scaleb(-2) for e in entries if e.kind is Kind.EARNED}
        assert expected.earned[card] == earned
        assert expected.returned[card].keys() == {e.invoice_number for e in entries if e.kind is Kind.RETURNED}
    accounts = {card: decode_account(state) for card, state in stream.accounts.items()}
    assert {card: standing(account) for card, account in accounts.items()} == {
        card: (expected.pending[card], expected.next_expiry_of(card)) for card in accounts
    }
    assert len({standing(account) for account in accounts.values()}) > 20
    versions = {entry.programme_version for of_card in stream.entries.values() for entry in of_card}
    assert {1, 2} <= versions
